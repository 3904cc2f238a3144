"""Forms of annotation files that are lines or tables: miniatures in the real layout, with damaged rows next to good ones."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.beam_jobs.annotations.converting import HEIGHT, WIDTH, convert_annotated
from tests.beam_jobs.annotations.reading import read, write_files
from tests.helpers.label_maps import PALETTE, png_of
from tpudata.errors import SourceError

MAP = png_of(np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) % 4)


def of_pixels(ymin: float, xmin: float, ymax: float, xmax: float, size: tuple[int, int] = (HEIGHT, WIDTH)) -> Any:
    """The edges of a box in pixels as fractions of the sides."""
    height, width = size
    return pytest.approx((ymin / height, xmin / width, ymax / height, xmax / width), abs=1e-5)


def assert_rejects(rejects: dict[str, str], file: str, reasons: dict[int, str]) -> None:
    """Check that rows of a file are rejected for reasons, by their lines, and nothing else is."""
    assert rejects.keys() == {f"{file} line {line}" for line in reasons}
    for line, reason in reasons.items():
        assert reason in rejects[f"{file} line {line}"]


def raise_memory_error(*_: object) -> None:
    raise MemoryError


class TestYolo:
    NAMES = "path: ../x\ntrain: images/train\nnames:\n  0: person\n  1: traffic light\n"

    def test_reads_boxes_and_polygons(self, tmp_path: Path) -> None:
        files = {
            "data.yaml": self.NAMES,
            "labels/train/a.v2.txt": "1 0.5 0.25 0.5 0.5\n\n0 0.5 0.5 1 1\n",
            "labels/train/empty.txt": "",
            "labels/val/b.txt": "0 0.1 0.2 0.7 0.3 0.5 0.9\n",
            "labels/train.txt": "./images/train/a.v2.jpg\n",
        }
        found = convert_annotated(tmp_path, files, ["train/a.v2.png", "train/empty.png", "val/b.png"])
        assert found.boxes("train/a.v2.png") == [("traffic light", (0, 0.25, 0.5, 0.75)), ("person", (0, 0, 1, 1))]
        assert found.boxes("train/empty.png") == []
        assert found.boxes("val/b.png") == [("person", (0.2, 0.1, 0.9, 0.7))]
        (mask,) = found.records["val/b.png"]["object/mask"]
        rows, columns = np.asarray(Image.open(io.BytesIO(mask))).nonzero()
        edges = (rows.min(), columns.min(), rows.max() + 1, columns.max() + 1)
        np.testing.assert_allclose(edges, (0.2 * HEIGHT, 0.1 * WIDTH, 0.9 * HEIGHT, 0.7 * WIDTH), atol=1)
        assert found.classes == ["person", "traffic light"]

    def test_rejects_damaged_lines(self, tmp_path: Path) -> None:
        bad = {
            "2 0.5 0.5 1 1": "unknown class number '2'",
            "-1 0.5 0.5 1 1": "unknown class number '-1'",
            "0 0.5 0.5 1": "3 numbers after the class",
            "0 0.5 0.5 1 1 0.9": "5 numbers after the class",
            "0 0.5 half 1 1": "column 3 is not a number: 'half'",
        }
        files = {f"labels/{number}.txt": f"\n{line}\n" for number, line in enumerate(bad)}
        files |= {"data.yaml": self.NAMES, "labels/good.txt": "0 0.5 0.5 1 1\n"}
        found = convert_annotated(tmp_path, files, [f"{name}.png" for name in (*range(len(bad)), "good")], "labels")
        assert [*found.records] == ["good.png"]
        assert found.rejects.keys() == {f"labels/{number}.txt line 2" for number in range(len(bad))}
        for number, reason in enumerate(bad.values()):
            assert reason in found.rejects[f"labels/{number}.txt line 2"]

    def test_matches_labels_with_images_of_the_same_split_folder(self, tmp_path: Path) -> None:
        names = ("train/labels/a.txt", "valid/labels/more/b.txt")
        files = {f"images/{name}": "0 0.5 0.5 1 1\n" for name in names} | {"images/data.yaml": "names: [person]"}
        pictures = ["train/images/a.png", "valid/images/more/b.png"]
        # Pictures of the same names in other folders have no labels.
        others = ["train/images/more/b.png", "valid/images/a.png"]
        assert sorted(convert_annotated(tmp_path, files, [*pictures, *others], "images").records) == pictures

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("data.yaml", "names: [person, traffic light]"),
            ("labels/classes.txt", "person\ntraffic light\n"),
            ("obj.names", "person\r\ntraffic light\r\n"),
        ],
    )
    def test_reads_class_names_from_each_kind_of_names_file(self, tmp_path: Path, name: str, text: str) -> None:
        found = convert_annotated(tmp_path, {"labels/a.txt": "1 0.5 0.5 1 1\n", name: text}, ["a.png"], "labels")
        assert found.boxes("a.png") == [("traffic light", (0, 0, 1, 1))]
        assert found.classes == ["person", "traffic light"]

    def test_keeps_names_that_are_booleans_of_yaml(self, tmp_path: Path) -> None:
        files = {"labels/a.txt": "1 0.5 0.5 1 1\n", "data.yaml": "names: [yes, off]"}
        found = convert_annotated(tmp_path, files, ["a.png"], "labels")
        assert (found.boxes("a.png"), found.classes) == ([("off", (0, 0, 1, 1))], ["yes", "off"])

    def test_recognizes_a_folder_whose_first_picture_has_no_objects(self, tmp_path: Path) -> None:
        files = {"data.yaml": self.NAMES, "labels/a.txt": "", "labels/b.txt": "1 0.5 0.5 1 1\n"}
        found = convert_annotated(tmp_path, files, ["a.png", "b.png"], "labels")
        assert [len(found.boxes(name)) for name in ("a.png", "b.png")] == [0, 1]

    def test_skips_files_of_names_in_the_folders_of_splits(self, tmp_path: Path) -> None:
        names = "person\ntraffic light\n"
        files = {"labels/train/a.txt": "1 0.5 0.5 1 1\n", "labels/train/classes.txt": names, "classes.txt": names}
        found = convert_annotated(tmp_path, files, ["train/a.png"], "labels")
        assert [*found.records] == ["train/a.png"]
        assert not found.rejects

    @pytest.mark.parametrize(("numbers", "points"), [(3, "0.5 0.25 2 0 0 0"), (2, "0.5 0.25 0 0")])
    def test_reads_keypoints_with_and_without_visibility(self, tmp_path: Path, numbers: int, points: str) -> None:
        files = {
            "data.yaml": f"kpt_shape: [2, {numbers}]\nnames: [person]",
            "labels/a.txt": f"0 0.5 0.5 1 1 {points}\n",
        }
        record = convert_annotated(tmp_path, files, ["a.png"]).records["a.png"]
        found = [record[f"object/keypoint/{part}"] for part in ("x", "y", "visibility")]
        assert found == [[0.5, 0], [0.25, 0], [2, 0]]

    @pytest.mark.cases(2)
    @pytest.mark.parametrize("text", ["names: [a", "nc: 2", "names: 3", "names: {1: a, 2: b}", "names: []"])
    def test_rejects_classes_without_names(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(SourceError, match=r"names|YAML"):
            convert_annotated(tmp_path, {"labels/a.txt": "0 0.5 0.5 1 1\n", "data.yaml": text}, ["a.png"])

    @pytest.mark.parametrize(
        "value", ["2026-13-01", "9" * 5000, "!!int x", "!!bool x", "!!timestamp x", "[" * 5000], ids=lambda v: v[:20]
    )
    def test_names_a_yaml_file_with_a_value_that_is_not_of_its_type(self, tmp_path: Path, value: str) -> None:
        files = {"labels/a.txt": "0 0.5 0.5 1 1\n", "data.yaml": f"names: [person]\nversion: {value}\n"}
        with pytest.raises(SourceError, match=r"data\.yaml: not YAML: .+\. Fix it\.$"):
            read(write_files(tmp_path, files))

    def test_lack_of_memory_is_not_reported_as_bad_yaml(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files = {"labels/a.txt": "0 0.5 0.5 1 1\n", "data.yaml": "names: [person]\n"}
        monkeypatch.setattr(yaml.SafeLoader, "get_single_data", raise_memory_error)
        with pytest.raises(MemoryError):
            read(write_files(tmp_path, files))


class TestOpenImages:
    HEADER = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside\n"
    ROWS = (
        "0b,xclick,/m/01,1,0.25,0.75,0.1,0.9,0,1,0,0,0\n"
        "0a,xclick,/m/02,1,0,1,0,1,0,0,1,0,0\n"
        "0b,xclick,/m/02,1,0.5,0.6,0.5,0.6,-1,-1,-1,-1,-1\n"
    )
    BAD = (
        "0c,xclick,/m/01,1,,0.75,0.1,0.9,0,1,0,0,0\n"
        "0d,xclick,/m/09,1,0.25,0.75,0.1,0.9,0,1,0,0,0\n"
        "0e,xclick,/m/01,1,0.25,0.75,0.9,0,1,0,0,0\n"
    )
    NAMES = '/m/02,Zebra\n/m/01,"Cat, wild"\n/m/03,Dog\n'

    @pytest.mark.cases(1)
    @pytest.mark.parametrize("annotations", ["meta", "meta/train-annotations-bbox.csv"])
    def test_groups_boxes_of_a_picture_from_rows_that_are_apart(self, tmp_path: Path, annotations: str) -> None:
        files = {
            "meta/train-annotations-bbox.csv": self.HEADER + self.ROWS + self.BAD,
            "meta/class-descriptions-boxable.csv": self.NAMES,
        }
        found = convert_annotated(tmp_path, files, [f"0{name}.png" for name in "abcde"], annotations)
        assert found.boxes("0b.png") == [("Cat, wild", (0.1, 0.25, 0.9, 0.75)), ("Zebra", (0.5, 0.5, 0.6, 0.6))]
        assert found.boxes("0a.png") == [("Zebra", (0, 0, 1, 1))]
        # A group is a crowd, and what is unknown is none.
        assert (found.records["0a.png"]["object/is_crowd"], found.records["0b.png"]["object/is_crowd"]) == ([1], [0, 0])
        assert found.classes == ["Zebra", "Cat, wild", "Dog"]
        assert len(found.records) == 2
        reasons = {5: "XMin is not a number", 6: "not in the class descriptions", 7: "12 cells"}
        assert_rejects(found.rejects, "meta/train-annotations-bbox.csv", reasons)

    def test_drops_classes_with_confidence_zero(self, tmp_path: Path) -> None:
        rows = "ImageID,Source,LabelName,Confidence\n0a,v,/m/01,1\n0a,v,/m/02,0\n0b,v,/m/03,0\n0a,v,/m/03,0.8\n"
        files = {"labels.csv": rows, "oidv7-class-descriptions.csv": f"LabelName,DisplayName\n{self.NAMES}/m/04,Dog\n"}
        found = convert_annotated(tmp_path, files, ["0a.png", "0b.png"])
        # Two labels are called Dog.
        assert found.texts("0a.png", "class/text") == ["Cat, wild", "/m/03"]
        assert found.texts("0b.png", "class/text") == []
        assert found.classes == ["Zebra", "Cat, wild", "/m/03", "/m/04"]

    @pytest.mark.parametrize("annotations", ["meta", "meta/a.csv"])
    def test_ignores_folders_named_like_its_files(self, tmp_path: Path, annotations: str) -> None:
        folders = {"meta/old.csv/b.csv": self.HEADER, "meta/class-descriptions.csv/c.csv": self.NAMES}
        found = read(write_files(tmp_path, {"meta/a.csv": self.HEADER + self.ROWS, **folders}) / annotations)
        assert set(found.pictures) == {"0a", "0b"}

    def test_uses_label_ids_as_names_without_descriptions(self, tmp_path: Path) -> None:
        found = convert_annotated(tmp_path, {"a.csv": self.HEADER + self.ROWS}, ["0a.png", "0b.png"], "a.csv")
        assert found.classes == ["/m/01", "/m/02"]


def test_box_table_groups_rows_by_picture(tmp_path: Path) -> None:
    rows = (
        "filename,width,height,class,xmin,ymin,xmax,ymax",
        "b.png,50,40,cat,8,9,45,40",
        "a.png,,,,,,,",
        "b.png,50,40,dog,0,0.5,50,40",
        "c.png,50,40,,8,9,50,40",
        "d.png,50,40,cat,8,9,,40",
        "e.png,inf,40,cat,8,9,5,40",
        "f.png,,,cat,0.1,0.2,0.5,1",
        "g.png,50,40,cat,0,0,1,1",
    )
    found = convert_annotated(tmp_path, {"a.csv": "\n".join(rows)}, [f"{name}.png" for name in "abcdefg"], "a.csv")
    assert found.boxes("b.png") == [("cat", of_pixels(9, 8, 40, 45)), ("dog", of_pixels(0.5, 0, 40, 50))]
    assert found.boxes("a.png") == []
    assert found.classes == ["cat", "dog"]
    assert sorted(found.records) == ["a.png", "b.png", "g.png"]
    assert_rejects(
        found.rejects, "a.csv", {5: "without class", 6: "xmax is not a number", 7: "infinity", 8: "multiply fractions"}
    )


class TestCeleba:
    ATTRIBUTES = "2\nBald Smiling Young \n000001.png -1  1  1\n000002.png -1 -1 -1\n"
    BOXES = "2\nimage_id x_1 y_1 width height\n000001.png    95  71 226 313\n000002.png    72  94 221 306\n"
    POINTS = "lefteye_x lefteye_y righteye_x righteye_y nose_x nose_y leftmouth_x leftmouth_y rightmouth_x rightmouth_y"
    ALIGNED = f"2\n{POINTS}\n000001.png 69 109 106 113 77 142 73 152 108 154\n000002.png 69 110 107 112 81 135 70 151 108 153\n"
    PICTURES = ("000001.png", "000002.png")
    SIZE = (218, 178)

    def test_derives_boxes_of_aligned_pictures_from_their_landmarks(self, tmp_path: Path) -> None:
        files: dict[str, str | bytes] = {
            "Anno/list_attr_celeba.txt": self.ATTRIBUTES,
            "Anno/list_bbox_celeba.txt": self.BOXES,
            "Anno/list_landmarks_align_celeba.txt": self.ALIGNED,
            "Anno/list_landmarks_celeba.txt": self.ALIGNED,
            "Anno/identity_CelebA.txt": "000001.png 2880\n",
            "img_align_celeba/000001.png": b"",
        }
        found = convert_annotated(tmp_path, files, self.PICTURES, size=self.SIZE)
        assert found.texts("000001.png", "class/text") == ["Smiling", "Young"]
        assert found.texts("000002.png", "class/text") == []
        assert found.classes == ["Bald", "Smiling", "Young"]
        assert [box for _, box in found.boxes("000001.png")] == [of_pixels(109, 69, 154, 108, self.SIZE)]
        record = found.records["000001.png"]
        np.testing.assert_allclose(record["object/keypoint/x"], np.divide([69, 106, 77, 73, 108], 178), 1e-6)
        np.testing.assert_allclose(record["object/keypoint/y"], np.divide([109, 113, 142, 152, 154], 218), 1e-6)

    def test_pictures_in_the_wild_have_listed_boxes_and_landmarks(self, tmp_path: Path) -> None:
        files = {"list_bbox_celeba.txt": self.BOXES, "list_landmarks_celeba.txt": self.ALIGNED}
        found = convert_annotated(tmp_path, files, self.PICTURES, size=(400, 500))
        assert [box for _, box in found.boxes("000001.png")] == [
            of_pixels(71, 95, 71 + 313, 95 + 226, (400, 500)),
        ]
        assert len(found.records["000001.png"]["object/keypoint/x"]) == 5

    def test_reads_kaggles_csv_like_the_original_text(self, tmp_path: Path) -> None:
        def as_csv(text: str) -> str:
            header, *rows = text.splitlines()[1:]
            columns = [name for name in header.split() if name != "image_id"]
            return "\n".join([",".join(["image_id", *columns]), *(",".join(row.split()) for row in rows)]) + "\n"

        texts = {"list_attr_celeba": self.ATTRIBUTES, "list_landmarks_align_celeba": self.ALIGNED}
        first, second = (
            convert_annotated(tmp_path / suffix, files, self.PICTURES, size=self.SIZE)
            for suffix, files in (
                ("txt", {f"{name}.txt": text for name, text in texts.items()}),
                ("csv", {f"{name}.csv": as_csv(text) for name, text in texts.items()}),
            )
        )
        assert first.records.keys() == {*self.PICTURES}
        assert first == second

    def test_rejects_damaged_rows(self, tmp_path: Path) -> None:
        rows = "000003.png -1  2  1\n000004.png -1 1\n000002.png -1 -1 -1\n"
        text = self.ATTRIBUTES.replace("2\n", "5\n", 1) + rows
        pictures = [f"00000{number}.png" for number in range(1, 5)]
        found = convert_annotated(tmp_path, {"list_attr_celeba.txt": text}, pictures, "list_attr_celeba.txt")
        assert "000001.png" in found.records
        assert not {"000003.png", "000004.png"} & {*found.records}
        assert_rejects(
            found.rejects, "list_attr_celeba.txt", {5: "attribute Smiling is '2'", 6: "3 cells", 7: "listed twice"}
        )

    def test_rejects_a_truncated_list(self, tmp_path: Path) -> None:
        text = self.ATTRIBUTES.rpartition("000002")[0]
        with pytest.raises(SourceError, match="says 2 pictures, and it has 1"):
            convert_annotated(tmp_path, {"list_attr_celeba.txt": text}, self.PICTURES, "list_attr_celeba.txt")

    @pytest.mark.parametrize("digits", [12, 20, 5000])
    def test_rejects_a_number_of_rows_that_no_list_has(self, tmp_path: Path, digits: int) -> None:
        path = write_files(tmp_path, {"list_attr_celeba.txt": self.ATTRIBUTES.replace("2\n", "9" * digits + "\n", 1)})
        with pytest.raises(SourceError, match=r"list_attr_celeba\.txt"):
            read(path / "list_attr_celeba.txt")


class TestCaptions:
    # The last row of each is damaged; Flickr30k has one without a delimiter.
    @pytest.mark.parametrize(
        ("name", "text", "more"),
        [
            (
                "Flickr8k.token.txt",
                'b.png#0\tA child .\na.png#0\tA dog\nb.png#1\tEin "Kind" , hier\nc.png#1\n',
                ["A dog"],
            ),
            (
                "results.csv",
                "image_name| comment_number| comment\n"
                'b.png| 0| A child .\nb.png| 1| Ein "Kind" , hier\n'
                "a.png| 3| A dog | runs .\na.png| 4   A dog runs .\nc.png| A dog runs across the grass .\n",
                ["A dog | runs .", "A dog runs ."],
            ),
            (
                "captions.txt",
                'image,caption\nb.png,A child .\na.png,A dog\nb.png,"Ein ""Kind"" , hier"\nc.png,\n',
                ["A dog"],
            ),
        ],
    )
    def test_reads_all_captions_of_a_picture_in_order(
        self, tmp_path: Path, name: str, text: str, more: list[str]
    ) -> None:
        found = convert_annotated(tmp_path, {name: text}, ["a.png", "b.png", "c.png"], name)
        assert {one: found.texts(one, "caption") for one in found.records} == {
            "b.png": ["A child .", 'Ein "Kind" , hier'],
            "a.png": more,
        }
        assert [*found.rejects] == [f"{name} line {len(text.splitlines())}"]

    def test_rejects_an_unclosed_quote(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="not CSV"):
            convert_annotated(tmp_path, {"a.csv": 'image,caption\na.png,"one\n'}, ["a.png"], "a.csv")


class TestImageFolder:
    def test_reads_objects_from_a_list_of_dicts(self, tmp_path: Path) -> None:
        one, two = {"bbox": [1, 2, 3, 4], "category": "leaf"}, {"bbox": [0, 0, 2, 1], "category": "root", "iscrowd": 1}
        rows = [{"file_name": "a.png", "objects": [one, two]}, {"file_name": "b.png", "objects": []}]
        files = {"images/metadata.jsonl": "\n".join(map(json.dumps, rows))}
        found = convert_annotated(tmp_path, files, ["a.png", "b.png"], "images/metadata.jsonl")
        assert found.boxes("a.png") == [("leaf", of_pixels(2, 1, 6, 4)), ("root", of_pixels(0, 0, 1, 2))]
        assert found.records["a.png"]["object/is_crowd"] == [0, 1]
        assert found.boxes("b.png") == []

    def test_reads_captions_classes_objects_and_values_and_rejects_damaged_rows(self, tmp_path: Path) -> None:
        objects = {"bbox": [[1, 2, 3, 4], [0, 0, 2.5, 1]], "categories": ["leaf", "root"], "area": [12, 2.5]}
        first = {
            "file_name": "more/ä 1.png",
            "text": "a roof",
            "label": "house",
            "height": 3,
            "score": 1,
            "tags": ["x"],
        }
        second = {"file_name": "2.png", "text": ["one", "two"], "label": "tree", "height": 4, "score": 0.5, "tags": []}
        bad = {
            "{}": "no 'file_name'",
            "[1]": "no JSON object",
            '{"file_name": "x"': "not JSON",
            '{"file_name": "2.png"}': "listed twice",
            '{"file_name": "6.png", "label": 1.5}': "a class is neither",
            '{"file_name": "7.png", "text": 1}': "'text' is neither",
            '{"file_name": "8.png", "objects": {"bbox": [[1, 2, 3]]}}': "'bbox'",
            '{"file_name": "9.png", "objects": {"bbox": [[1, 2, "3", "4"]]}}': "'bbox'",
            '{"file_name": "10.png", "objects": {"bbox": [[1, 2, 3, 4]], "categories": []}}': "'categories'",
            '{"file_name": "11.png", "": 1}': "the name of a value is ''",
            '{"file_name": "12.png", "\\ud800": 1}': "the name of a value is '\\ud800'",
        }
        lines = [json.dumps(first), json.dumps({**second, "objects": objects}), "", *bad]
        pictures = ["more/ä 1.png", *(f"{number}.png" for number in (2, *range(6, 13)))]
        found = convert_annotated(tmp_path, {"images/metadata.jsonl": "\n".join(lines)}, pictures, "images")
        assert (found.texts("more/ä 1.png", "caption"), found.texts("2.png", "caption")) == (["a roof"], ["one", "two"])
        assert (found.texts("more/ä 1.png", "class/text"), found.texts("2.png", "class/text")) == (["house"], ["tree"])
        assert found.boxes("2.png") == [("leaf", of_pixels(2, 1, 6, 4)), ("root", of_pixels(0, 0, 1, 2.5))]
        record = found.records["2.png"]
        assert record["object/area"] == [12, 2.5]
        assert (record["score"], record["tags"], found.records["more/ä 1.png"]["tags"]) == ([0.5], [], [b"x"])
        assert len(found.records) == 2
        assert_rejects(found.rejects, "images/metadata.jsonl", dict(enumerate(bad.values(), 4)))

    def test_reads_csv_with_whole_numbers_as_labels(self, tmp_path: Path) -> None:
        files = {"images/metadata.csv": 'file_name,text,label\n0.png,"a, b",7\n1.png,c,10\n'}
        found = convert_annotated(tmp_path, files, ["0.png", "1.png"], "images")
        assert found.texts("0.png", "caption") == ["a, b"]
        assert (found.records["0.png"]["class/label"], found.records["1.png"]["class/label"]) == ([7], [10])

    def test_rejects_a_column_of_a_csv_without_a_name(self, tmp_path: Path) -> None:
        files = {"images/metadata.csv": ",file_name,label\n0,0.png,7\n"}
        with pytest.raises(SourceError, match=r"metadata\.csv: a column has no name"):
            convert_annotated(tmp_path, files, ["0.png"], "images")

    def test_columns_of_a_csv_are_numbers_if_all_their_cells_are(self, tmp_path: Path) -> None:
        rows = (
            "file_name,text,count,code,score,gap,id,wide,big,mixed",
            "a.png,1,7,007,1,,9,1,16777217,16777217",
            "b.png,2,-8,8,0.5,3.5,,99999999999999999999,1,0.5",
        )
        files = {"images/metadata.csv": "\n".join(rows)}
        record = convert_annotated(tmp_path, files, ["a.png", "b.png"], "images").records["a.png"]
        (gap,) = record.pop("gap")
        assert math.isnan(gap)
        values = {name: record[name] for name in ("count", "code", "score", "id", "wide", "big", "mixed", "caption")}
        assert values == {
            "count": [7],
            "code": [b"007"],
            "score": [1.0],
            "id": [b"9"],
            "wide": [b"1"],
            "big": [16777217],
            "mixed": [b"16777217"],
            "caption": [b"1"],
        }


def test_boxes_of_tiny_imagenet_include_the_pixels_of_their_edges(tmp_path: Path) -> None:
    rows = (
        "val_0.JPEG\tn03444034\t0\t32\t44\t62",
        "val_1.JPEG\tn02\t0\t0\t63\t63",
        "val_2.JPEG\tn02\t0\t0",
        "val_1.JPEG\tn1\t0\t0\t1\t1",
        f"val_3.JPEG\tn1\t0\t0\t1\t{'9' * 400}",
        f"val_4.JPEG\tn1\t0\t0\t1\t{'9' * 5000}",
    )
    files = {"images/val_annotations.txt": "\n".join(rows)}
    pictures = [f"images/val_{number}.JPEG" for number in range(5)]
    found = convert_annotated(tmp_path, files, pictures, "images", size=(64, 64))
    assert found.boxes("images/val_0.JPEG") == [("n03444034", of_pixels(32, 0, 63, 45, (64, 64)))]
    assert found.texts("images/val_0.JPEG", "class/text") == ["n03444034"]
    reasons = {3: "not a row", 4: "listed twice", 5: "not a row", 6: "not a row"}
    assert_rejects(found.rejects, "images/val_annotations.txt", reasons)


class TestOxfordPets:
    LIST = "#Image CLASS-ID SPECIES BREED ID\n#ID: 1:37 class ids\nAbyssinian_100 1 1 1\ngreat_pyrenees_7 16 2 9\nBombay_1 2 1 2\n"
    NAMES = ("Abyssinian_100", "great_pyrenees_7", "Bombay_1", "Bombay_2")

    def test_takes_classes_from_names_and_finds_trimaps(self, tmp_path: Path) -> None:
        files: dict[str, str | bytes] = {
            "annotations/list.txt": self.LIST,
            "annotations/trainval.txt": "Bombay_1 2 1 2\n",
            **{f"annotations/trimaps/{name}.png": MAP for name in self.NAMES},
            "annotations/trimaps/._Abyssinian_100.png": b"",
            "annotations/xmls/Abyssinian_100.xml": "<annotation><filename>Abyssinian_100.png</filename></annotation>",
        }
        pictures = [f"{name}.png" for name in self.NAMES]
        found = convert_annotated(tmp_path / "whole", files, pictures, "annotations/list.txt")
        assert found.classes == ["Abyssinian", "Bombay", "great_pyrenees"]
        assert found.texts("Abyssinian_100.png", "class/text") == ["Abyssinian"]
        assert found.records["Abyssinian_100.png"]["segmentation/class/encoded"] == [MAP]
        assert found.records["great_pyrenees_7.png"]["species"] == [2]
        for part, names in (("trainval.txt", ["Bombay_1.png"]), ("xmls", ["Abyssinian_100.png"])):
            assert [*convert_annotated(tmp_path / part, files, pictures, f"annotations/{part}").records] == names

    def test_rejects_damaged_rows(self, tmp_path: Path) -> None:
        text = self.LIST + f"Bombay_2 2 3 2\nBombay_1 2 1 2\nBombay_2 {'9' * 5000} 1 2\n"
        pictures = [f"{name}.png" for name in self.NAMES]
        found = convert_annotated(tmp_path, {"list.txt": text}, pictures, "list.txt")
        assert_rejects(found.rejects, "list.txt", {6: "not a row", 7: "listed twice", 8: "not a row"})
        with pytest.raises(SourceError, match="class 2 is 'Birman' here"):
            convert_annotated(tmp_path / "other", {"list.txt": self.LIST + "Birman_1 2 1 2\n"}, pictures, "list.txt")


class TestLabelMaps:
    def test_reads_cityscapes_label_ids_or_train_ids(self, tmp_path: Path) -> None:
        stem, picture = (
            "gtFine/train/aachen/aachen_000000_000019_gtFine",
            "train/aachen/aachen_000000_000019_leftImg8bit.png",
        )
        files: dict[str, str | bytes] = {
            f"{stem}_labelIds.png": MAP,
            f"{stem}_instanceIds.png": png_of([[1]], 16),
            f"{stem}_color.png": b"",
            f"{stem}_polygons.json": "{}",
        }
        found = convert_annotated(tmp_path / "ids", files, [picture], "gtFine")
        assert found.records[picture]["segmentation/class/encoded"] == [MAP]
        other = png_of(np.ones((HEIGHT, WIDTH), int))
        found = convert_annotated(
            tmp_path / "train", {**files, f"{stem}_labelTrainIds.png": other}, [picture], "gtFine"
        )
        assert found.records[picture]["segmentation/class/encoded"] == [other]

    def test_ade20k_maps_keep_the_folders_of_their_pictures(self, tmp_path: Path) -> None:
        names = ["training/ADE_train_00000001", "validation/ADE_val_00000001"]
        files = {f"annotations/{name}.png": MAP for name in names}
        found = convert_annotated(tmp_path, files, [f"{name}.png" for name in names], "annotations")
        assert sorted(found.records) == [f"{name}.png" for name in names]

    def test_reads_maps_with_palettes(self, tmp_path: Path) -> None:
        classes = np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) % 3
        files = {"SegmentationClass/2007_1.png": png_of(classes, 8, PALETTE)}
        found = convert_annotated(tmp_path, files, ["2007_1.png"], "SegmentationClass")
        (stored,) = found.records["2007_1.png"]["segmentation/class/encoded"]
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(stored))), classes)
