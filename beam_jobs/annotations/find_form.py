"""Recognition of annotation files from their content."""

from __future__ import annotations

from beam_jobs.annotations.files.folders import HEAD_BYTES, list_first_entries, pick_folder
from beam_jobs.annotations.form import AnnotationForm
from beam_jobs.annotations.forms.box_table import BoxTableForm
from beam_jobs.annotations.forms.captions import CaptionsForm
from beam_jobs.annotations.forms.celeba import CelebaForm
from beam_jobs.annotations.forms.coco import CocoForm
from beam_jobs.annotations.forms.image_folder import ImageFolderForm
from beam_jobs.annotations.forms.label_maps import LabelMapsForm
from beam_jobs.annotations.forms.open_images import OpenImagesForm
from beam_jobs.annotations.forms.oxford_pets import OxfordPetsForm
from beam_jobs.annotations.forms.tiny_imagenet import TinyImagenetForm
from beam_jobs.annotations.forms.voc import VocForm
from beam_jobs.annotations.forms.yolo import YoloForm
from beam_jobs.compression.files import read_head
from tpudata.errors import SourceError
from tpudata.storage import Entry, storage_for

# In order of precedence: a folder of Oxford-IIIT Pets, for example, also has VOC files and label maps.
FORMS: tuple[type[AnnotationForm], ...] = (
    ImageFolderForm,
    CocoForm,
    OxfordPetsForm,
    VocForm,
    CelebaForm,
    OpenImagesForm,
    BoxTableForm,
    CaptionsForm,
    TinyImagenetForm,
    YoloForm,
    LabelMapsForm,
)
# Subfolders of a dataset that hold its annotations.
_SUBFOLDERS = ("annotations", "Annotations", "Anno")


def find_form(path: str) -> AnnotationForm:
    """Return the form of an annotation file, or of a folder of them.

    Raises:
        SourceError: the path does not exist, its form is unknown, the folder has several annotation files that could be meant, or
            a file that the form needs, such as a list of splits, is missing or damaged.
    """
    entry = storage_for(path).stat(path)
    if entry is None:
        raise SourceError(f"{path} does not exist. Pass a file or a folder of annotations.")
    if not entry.is_folder:
        form = _find_form_of_file(path)
        if form is None:
            raise _make_unknown_form_error(path)
        return form
    entries = list_first_entries(path)
    subfolder = pick_folder(entries, *_SUBFOLDERS)
    # Search the subfolder first. A label map belongs to the picture with the same path below the searched folder, so the map
    # `annotations/a/x.png` has to be found as `a/x.png`.
    form = _find_form_of_folder(subfolder, list_first_entries(subfolder)) if subfolder else None
    form = form or _find_form_of_folder(path, entries)
    if form is None:
        raise _make_unknown_form_error(path)
    return form.add_folder_facts(entries)


def _find_form_of_file(path: str) -> AnnotationForm | None:
    """Return the first form that recognizes a file; None if its form is unknown."""
    head = read_head(path, HEAD_BYTES)
    return next(filter(None, (form_class.detect_file(path, head) for form_class in FORMS)), None)


def _find_form_of_folder(path: str, entries: list[Entry]) -> AnnotationForm | None:
    """Return the form of a folder, or of the only annotation file in it; None if no form recognizes the folder or a file in it.

    Raises:
        SourceError: the folder has several annotation files, or `AnnotationForm.detect_folder` raises it.
    """
    form = next(filter(None, (form_class.detect_folder(path, entries) for form_class in FORMS)), None)
    if form is not None:
        return form
    # If a folder of pictures has one annotation file, that file is meant.
    files = [entry for entry in entries if not entry.is_folder and entry.name.endswith((".json", ".csv", ".txt"))]
    forms_by_path = {file.path: file_form for file in files if (file_form := _find_form_of_file(file.path)) is not None}
    if len(forms_by_path) > 1:
        raise SourceError(f"{path} has several annotation files: {', '.join(forms_by_path)}. Pass one of them.")
    return next(iter(forms_by_path.values()), None)


def _make_unknown_form_error(path: str) -> SourceError:
    """Return the error of a file or folder that no form recognizes; its message lists the forms."""
    titles = "; ".join(form_class.title for form_class in FORMS)
    return SourceError(
        f"{path}: no annotations of a known form (expected one of: {titles}). Pass another file or folder."
    )
