"""Pictures with annotations: `AnnotatedImages` joins the files of a folder with their annotations."""
