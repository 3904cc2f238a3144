"""The forms of annotation files, a module each; `beam_jobs.annotations.find_form` has their table."""
