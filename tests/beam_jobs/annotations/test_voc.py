"""Pascal VOC compared with a plain loop; odd names; truncated, damaged and hostile files.

Tests of names and encodings read the form directly: hypothesis tries any name, and files are cut at each byte.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_jobs.annotations.forms.voc import VocForm, parse_xml
from tests.beam_jobs.annotations.converting import convert_annotated
from tests.beam_jobs.annotations.reading import approximately, read, write_text
from tpudata.errors import BadRecordError

XML = """<annotation>
  <folder>VOC2012</folder>
  <filename>{name}</filename>
  <source><database>The VOC2008 Database</database></source>
  <size><width>500</width><height>375</height><depth>3</depth></size>
  <segmented>0</segmented>
  <object>
    <name>person</name><pose>Left</pose><truncated>1</truncated><difficult>1</difficult>
    <bndbox><xmin>1</xmin><ymin>11.5</ymin><xmax>500</xmax><ymax>293</ymax></bndbox>
    <part><name>head</name><bndbox><xmin>7</xmin><ymin>8</ymin><xmax>9</xmax><ymax>10</ymax></bndbox></part>
  </object>
  <object>
    <name>tv monitor</name>
    <bndbox><xmax>448</xmax><xmin>34</xmin><ymax>293</ymax><ymin>11</ymin></bndbox>
  </object>
</annotation>
"""


def test_reads_a_folder_as_a_plain_loop_does(tmp_path: Path) -> None:
    for number in (2, 1):
        write_text(tmp_path / "Annotations" / f"2008_{number}.xml", XML.format(name=f"2008_{number}.jpg"))
    write_text(tmp_path / "ImageSets" / "Main" / "train.txt", "2008_1\n2008_2\n")
    (tmp_path / "JPEGImages").mkdir()
    found = read(tmp_path)
    assert list(found.pictures) == ["2008_1.jpg", "2008_2.jpg"]
    for path in sorted((tmp_path / "Annotations").iterdir()):
        root = ElementTree.parse(path).getroot()
        picture = found.pictures[root.findtext("filename") or ""]
        assert (picture.width, picture.height) == (500, 375)
        boxes = []
        for element in root.findall("object"):
            edges = {child.tag: float(child.text or "") for child in element.find("bndbox") or ()}
            # The pixel of the top left corner is (1, 1), and a box contains the pixels of its edges.
            boxes.append((edges["ymin"] - 1, edges["xmin"] - 1, edges["ymax"], edges["xmax"]))
        assert [item.box for item in picture.objects] == [approximately(box) for box in boxes]
    assert [(item.class_name, item.is_difficult) for item in picture.objects] == [
        ("person", True),
        ("tv monitor", False),
    ]
    assert found.contents.object_names == ("person", "tv monitor")


def test_reads_a_file_alone_and_a_folder_of_files(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a.xml", '<?xml version="1.0"?>\n<!-- made by hand -->\n' + XML.format(name="a.jpg"))
    assert list(read(path).pictures) == list(read(tmp_path).pictures) == ["a.jpg"]


def test_a_picture_without_a_name_takes_that_of_its_file(tmp_path: Path) -> None:
    path = write_text(tmp_path / "photo.v2.xml", "<annotation><size><width>0</width></size></annotation>")
    picture = read(path).pictures["photo.v2"]
    assert (picture.width, picture.height, picture.objects) == (0, 0, ())


@given(name=st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"), min_size=1))
def test_keeps_names_with_any_characters(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write_text(tmp_path_factory.mktemp("voc") / "a.xml", XML.format(name=escape(name)))
    expected = name.strip() or "a"
    assert list(read(path).pictures) == [expected]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "iso-8859-1"])
def test_reads_files_in_their_declared_encoding(tmp_path: Path, encoding: str) -> None:
    text = f'<?xml version="1.0" encoding="{encoding}"?>' + XML.format(name="dir\\größe 1.jpg")
    (tmp_path / "a.xml").write_bytes(text.encode(encoding))
    (item,) = VocForm(str(tmp_path / "a.xml"), is_folder=False).read(str(tmp_path / "a.xml"), None)  # type: ignore[arg-type]
    assert not isinstance(item, BadRecordError)
    assert item.picture == "dir\\größe 1.jpg"


BOMBS = {
    "billion laughs": '<!DOCTYPE a [<!ENTITY a "ha">'
    + "".join(f'<!ENTITY {new} "{f"&{old};" * 10}">' for old, new in zip("abcdefgh", "bcdefghi", strict=True))
    + "]><annotation><filename>&i;</filename></annotation>",
    "quadratic blowup": f'<!DOCTYPE a [<!ENTITY a "{"x" * 50_000}">]><annotation>{"&a;" * 50_000}</annotation>',
    "external entity": '<!DOCTYPE a [<!ENTITY a SYSTEM "file:///etc/passwd">]><annotation><filename>&a;</filename></annotation>',
    "parameter entity": '<!DOCTYPE a [<!ENTITY % a SYSTEM "http://127.0.0.1:9/a"> %a;]><annotation/>',
}
DAMAGES = [
    ("<xmin>1</xmin>", "<xmin>left</xmin>", "object 'person': xmin is not a number: 'left'"),
    ("<xmin>1</xmin>", "", "object 'person': xmin is not a number: ''"),
    ("<name>person</name>", "", "without name"),
    ("bndbox", "robndbox", "object 'person' has no bndbox"),
    ("<width>500</width>", "<width>wide</width>", "width is not a number"),
    ("<width>500</width>", "<width>-1</width>", "width is not a number of pixels"),
    ("<width>500</width>", "<width>nan</width>", "width is not a number of pixels"),
    ("</annotation>", "", "not XML, or truncated"),
    ("<annotation>", '<!DOCTYPE annotation SYSTEM "a.dtd"><annotation>', "document type"),
]


def test_rejects_damaged_files_and_entity_declarations(tmp_path: Path) -> None:
    files = {f"{number}.xml": XML.format(name="").replace(old, new) for number, (old, new, _) in enumerate(DAMAGES)}
    files |= {f"{name}.xml": f'<?xml version="1.0"?>{text}' for name, text in BOMBS.items()}
    annotations = {f"Annotations/{name}": text for name, text in {**files, "good.xml": XML.format(name="")}.items()}
    pictures = [f"{Path(name).stem}.png" for name in [*files, "good.xml"]]
    found = convert_annotated(tmp_path, annotations, pictures, "Annotations", size=(375, 500))
    assert [*found.records] == ["good.png"]
    reasons = [reason for _, _, reason in DAMAGES] + ["document type"] * len(BOMBS)
    assert found.rejects.keys() == {f"Annotations/{name}" for name in files}
    for name, reason in zip(files, reasons, strict=True):
        assert reason in found.rejects[f"Annotations/{name}"]


def test_rejects_a_file_truncated_at_any_byte() -> None:
    data = XML.format(name="ä.jpg").rstrip().encode()
    for length in range(len(data)):
        with pytest.raises(ValueError, match="not XML, or truncated"):
            parse_xml(data[:length])
