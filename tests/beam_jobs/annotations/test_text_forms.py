"""Forms of annotation files that are lines or tables: miniatures in the real layout, and damaged rows.

Tests call the forms directly: a conversion for each of some hundred damaged rows and files would be slow.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from beam_jobs.annotations.annotation import ImageAnnotation, MapFile, ObjectAnnotation
from beam_jobs.annotations.segmentation import Polygons
from tests.beam_jobs.annotations.reading import approximately, read, write_files, write_text
from tests.helpers.label_maps import PALETTE, png_of
from tpudata.errors import SourceError

MAP = png_of([[0, 1], [2, 3]])


def only_object(picture: ImageAnnotation) -> ObjectAnnotation:
    (item,) = picture.objects
    return item


class TestYolo:
    FILES: ClassVar[dict[str, str | bytes]] = {
        "data.yaml": "path: ../x\ntrain: images/train\nnames:\n  0: person\n  1: traffic light\n",
        "labels/train/a.v2.txt": "1 0.5 0.25 0.5 0.5\n\n0 0.5 0.5 1 1\n",
        "labels/train/empty.txt": "",
        "labels/val/b.txt": "0 0.1 0.2 0.7 0.3 0.5 0.9\n",
        "labels/train.txt": "./images/train/a.v2.jpg\n",
        "images/train/a.v2.jpg": b"",
    }

    def test_reads_boxes_and_polygons(self, tmp_path: Path) -> None:
        found = read(write_files(tmp_path, self.FILES))
        assert list(found.pictures) == ["train/a.v2", "train/empty", "val/b"]
        first, second = found.pictures["train/a.v2"].objects
        assert (first.class_name, first.box) == ("traffic light", approximately((0, 0.25, 0.5, 0.75)))
        assert (second.class_name, second.box) == ("person", approximately((0, 0, 1, 1)))
        assert found.pictures["train/empty"].objects == ()
        item = only_object(found.pictures["val/b"])
        assert item.box == (0.2, 0.1, 0.9, 0.7)
        assert isinstance(item.segmentation, Polygons)
        assert item.segmentation.is_normalised
        assert found.pictures["val/b"].is_normalised
        assert found.contents.object_names == ("person", "traffic light")

    def test_matches_labels_with_images_of_the_same_split_folder(self, tmp_path: Path) -> None:
        names = ("train/labels/a.txt", "valid/labels/more/b.txt")
        found = read(write_files(tmp_path, {"data.yaml": "names: [person]", **dict.fromkeys(names, "0 0.5 0.5 1 1\n")}))
        assert list(found.pictures) == ["train/images/a", "valid/images/more/b"]

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("data.yaml", "names: [person, traffic light]"),
            ("labels/classes.txt", "person\ntraffic light\n"),
            ("obj.names", "person\r\ntraffic light\r\n"),
        ],
    )
    def test_reads_class_names_from_each_kind_of_names_file(self, tmp_path: Path, name: str, text: str) -> None:
        files = {key: value for key, value in self.FILES.items() if key != "data.yaml"}
        found = read(write_files(tmp_path, files | {name: text}) / "labels")
        assert found.contents.object_names == ("person", "traffic light")
        assert list(found.pictures) == ["train/a.v2", "train/empty", "val/b"]

    @pytest.mark.parametrize(("numbers", "points"), [(3, "0.5 0.25 2 0 0 0"), (2, "0.5 0.25 0 0")])
    def test_reads_keypoints_with_and_without_visibility(self, tmp_path: Path, numbers: int, points: str) -> None:
        files = {
            "data.yaml": f"kpt_shape: [2, {numbers}]\nnames: [person]",
            "labels/a.txt": f"0 0.5 0.5 1 1 {points}\n",
        }
        item = only_object(read(write_files(tmp_path, files)).pictures["a"])
        assert item.keypoint_array.tolist() == [[0.5, 0.25, 2], [0, 0, 0]]

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            ("2 0.5 0.5 1 1", "unknown class number '2'"),
            ("-1 0.5 0.5 1 1", "unknown class number '-1'"),
            ("0 0.5 0.5 1", "3 numbers after the class"),
            ("0 0.5 0.5 1 1 0.9", "5 numbers after the class"),
            ("0 0.5 half 1 1", "column 3 is no number: 'half'"),
        ],
    )
    def test_rejects_damaged_lines(self, tmp_path: Path, line: str, reason: str) -> None:
        path = write_files(tmp_path, self.FILES | {"labels/val/b.txt": f"\n{line}\n"}) / "labels" / "val" / "b.txt"
        found = read(tmp_path)
        assert found.one_error().source == f"{path} line 2"
        assert reason in found.one_error().reason
        assert list(found.pictures) == ["train/a.v2", "train/empty"]

    @pytest.mark.parametrize("text", ["nc: 2", "names: 3", "names: {1: a, 2: b}", "names: []", "names: [a"])
    def test_rejects_classes_without_names(self, tmp_path: Path, text: str) -> None:
        with pytest.raises(SourceError, match=r"names|YAML"):
            read(write_files(tmp_path, self.FILES | {"data.yaml": text}))


class TestOpenImages:
    HEADER = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside\n"
    ROWS = (
        "0b,xclick,/m/01,1,0.25,0.75,0.1,0.9,0,1,0,0,0\n"
        "0a,xclick,/m/02,1,0,1,0,1,0,0,1,0,0\n"
        "0b,xclick,/m/02,1,0.5,0.6,0.5,0.6,-1,-1,-1,-1,-1\n"
    )
    NAMES = '/m/02,Zebra\n/m/01,"Cat, wild"\n/m/03,Dog\n'

    def test_groups_boxes_of_a_picture_from_rows_that_are_apart(self, tmp_path: Path) -> None:
        files = {"train-annotations-bbox.csv": self.HEADER + self.ROWS, "class-descriptions-boxable.csv": self.NAMES}
        write_files(tmp_path, files)
        for path in (tmp_path, tmp_path / "train-annotations-bbox.csv"):
            found = read(path)
            assert list(found.pictures) == ["0b", "0a"]
            first, second = found.pictures["0b"].objects
            assert (first.class_name, first.box, first.is_crowd) == ("Cat, wild", (0.1, 0.25, 0.9, 0.75), False)
            assert (second.class_name, second.is_crowd) == ("Zebra", None)
            assert only_object(found.pictures["0a"]).is_crowd is True
            assert found.pictures["0a"].is_normalised
            assert found.contents.object_names == ("Zebra", "Cat, wild", "Dog")

    def test_drops_classes_with_confidence_zero(self, tmp_path: Path) -> None:
        rows = "ImageID,Source,LabelName,Confidence\n0a,v,/m/01,1\n0a,v,/m/02,0\n0b,v,/m/03,0\n0a,v,/m/03,0.8\n"
        files = {"labels.csv": rows, "oidv7-class-descriptions.csv": f"LabelName,DisplayName\n{self.NAMES}/m/04,Dog\n"}
        found = read(write_files(tmp_path, files))
        # Two labels are called Dog.
        assert {name: picture.classes for name, picture in found.pictures.items()} == {
            "0a": ("Cat, wild", "/m/03"),
            "0b": (),
        }
        assert found.contents.class_names == ("Zebra", "Cat, wild", "/m/03", "/m/04")

    def test_uses_label_ids_as_names_without_descriptions(self, tmp_path: Path) -> None:
        found = read(write_files(tmp_path, {"a.csv": self.HEADER + self.ROWS}))
        assert found.contents.object_names == ("/m/01", "/m/02")

    @pytest.mark.parametrize(
        ("old", "new", "reason"),
        [
            ("0.25", "", "XMin is no number"),
            ("/m/01", "/m/09", "not in the class descriptions"),
            (",0.1,", ",", "12 cells"),
        ],
    )
    def test_rejects_damaged_rows(self, tmp_path: Path, old: str, new: str, reason: str) -> None:
        rows = self.HEADER + self.ROWS.replace(old, new, 1)
        write_files(tmp_path, {"a.csv": rows, "class-descriptions-boxable.csv": self.NAMES})
        error = read(tmp_path / "a.csv").one_error()
        assert reason in error.reason
        assert error.source == f"{tmp_path / 'a.csv'} line 2"


class TestBoxTable:
    HEADER = "filename,width,height,class,xmin,ymin,xmax,ymax\n"

    def test_groups_rows_by_picture(self, tmp_path: Path) -> None:
        rows = "b.jpg,65,41,cat,8,9,52,40\na.jpg,,,,,,,\nb.jpg,65,41,dog,0,0.5,65,41\n"
        found = read(write_text(tmp_path / "a.csv", self.HEADER + rows))
        assert list(found.pictures) == ["b.jpg", "a.jpg"]
        picture = found.pictures["b.jpg"]
        assert (picture.width, picture.height) == (65, 41)
        assert [item.box for item in picture.objects] == [(9, 8, 40, 52), (0.5, 0, 41, 65)]
        assert found.contents.object_names == ("cat", "dog")
        assert found.pictures["a.jpg"].objects == ()

    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            ("b.jpg,65,41,,8,9,52,40", "without class"),
            ("b.jpg,65,41,cat,8,9,,40", "xmax is no number"),
            ("b.jpg,inf,41,cat,8,9,5,40", "infinity"),
        ],
    )
    def test_rejects_damaged_rows(self, tmp_path: Path, row: str, reason: str) -> None:
        assert reason in read(write_text(tmp_path / "a.csv", f"{self.HEADER}{row}\n")).one_error().reason


class TestCeleba:
    ATTRIBUTES = "2\nBald Smiling Young \n000001.jpg -1  1  1\n000002.jpg -1 -1 -1\n"
    BOXES = "2\nimage_id x_1 y_1 width height\n000001.jpg    95  71 226 313\n000002.jpg    72  94 221 306\n"
    POINTS = "lefteye_x lefteye_y righteye_x righteye_y nose_x nose_y leftmouth_x leftmouth_y rightmouth_x rightmouth_y"
    ALIGNED = f"2\n{POINTS}\n000001.jpg 69 109 106 113 77 142 73 152 108 154\n000002.jpg 69 110 107 112 81 135 70 151 108 153\n"

    def test_derives_boxes_of_aligned_pictures_from_their_landmarks(self, tmp_path: Path) -> None:
        files: dict[str, str | bytes] = {
            "Anno/list_attr_celeba.txt": self.ATTRIBUTES,
            "Anno/list_bbox_celeba.txt": self.BOXES,
            "Anno/list_landmarks_align_celeba.txt": self.ALIGNED,
            "Anno/list_landmarks_celeba.txt": self.ALIGNED,
            "Anno/identity_CelebA.txt": "000001.jpg 2880\n",
            "img_align_celeba/000001.jpg": b"",
        }
        found = read(write_files(tmp_path, files))
        picture = found.pictures["000001.jpg"]
        assert picture.classes == ("Smiling", "Young")
        assert found.pictures["000002.jpg"].classes == ()
        item = only_object(picture)
        assert item.box == approximately((109, 69, 154, 108))
        assert item.keypoint_array[:, :2].ravel().tolist() == [69, 109, 106, 113, 77, 142, 73, 152, 108, 154]
        assert found.contents.class_names == ("Bald", "Smiling", "Young")
        assert found.contents.several_classes
        assert found.contents.names.keypoints == ("lefteye", "righteye", "nose", "leftmouth", "rightmouth")

    def test_pictures_in_the_wild_have_listed_boxes_and_landmarks(self, tmp_path: Path) -> None:
        files = {"list_bbox_celeba.txt": self.BOXES, "list_landmarks_celeba.txt": self.ALIGNED}
        item = only_object(read(write_files(tmp_path, files)).pictures["000001.jpg"])
        assert item.box == approximately((71, 95, 71 + 313, 95 + 226))
        assert len(item.keypoint_array) == 5

    def test_reads_kaggles_csv_like_the_original_text(self, tmp_path: Path) -> None:
        def as_csv(text: str) -> str:
            header, *rows = text.splitlines()[1:]
            columns = [name for name in header.split() if name != "image_id"]
            return "\n".join([",".join(["image_id", *columns]), *(",".join(row.split()) for row in rows)]) + "\n"

        texts = {"list_attr_celeba": self.ATTRIBUTES, "list_landmarks_align_celeba": self.ALIGNED}
        first = read(write_files(tmp_path / "txt", {f"{name}.txt": text for name, text in texts.items()}))
        second = read(write_files(tmp_path / "csv", {f"{name}.csv": as_csv(text) for name, text in texts.items()}))
        assert [(picture.classes, picture.objects) for picture in first.pictures.values()] == [
            (picture.classes, picture.objects) for picture in second.pictures.values()
        ]

    @pytest.mark.parametrize(
        ("old", "new", "reason"),
        [
            ("-1  1  1", "-1  2  1", "attribute Smiling is '2'"),
            ("-1  1  1", "-1 1", "3 cells"),
            ("000002", "000001", "listed twice"),
        ],
    )
    def test_rejects_damaged_rows(self, tmp_path: Path, old: str, new: str, reason: str) -> None:
        path = write_text(tmp_path / "list_attr_celeba.txt", self.ATTRIBUTES.replace(old, new, 1))
        assert reason in read(path).one_error().reason

    def test_rejects_a_truncated_list(self, tmp_path: Path) -> None:
        path = write_text(tmp_path / "list_attr_celeba.txt", self.ATTRIBUTES.rpartition("000002")[0])
        with pytest.raises(SourceError, match="says 2 pictures, and it has 1"):
            read(path)


class TestCaptions:
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("Flickr8k.token.txt", 'b.jpg#0\tA child .\nb.jpg#1\tEin "Kind" , hier\na.jpg#0\tA dog\n'),
            (
                "results.csv",
                'image_name| comment_number| comment\nb.jpg| 0| A child .\nb.jpg| 1| Ein "Kind" , hier\na.jpg| 0| A dog\n',
            ),
            ("captions.txt", 'image,caption\nb.jpg,A child .\nb.jpg,"Ein ""Kind"" , hier"\na.jpg,A dog\n'),
        ],
    )
    def test_reads_all_captions_of_a_picture_in_order(self, tmp_path: Path, name: str, text: str) -> None:
        found = read(write_text(tmp_path / name, text))
        assert {name: picture.captions for name, picture in found.pictures.items()} == {
            "b.jpg": ("A child .", 'Ein "Kind" , hier'),
            "a.jpg": ("A dog",),
        }

    def test_reads_the_row_of_flickr30k_that_lacks_a_delimiter(self, tmp_path: Path) -> None:
        text = (
            "image_name| comment_number| comment\na.jpg| 3| A dog | runs .\na.jpg| 4   A dog runs across the grass .\n"
        )
        found = read(write_text(tmp_path / "results.csv", text))
        assert found.pictures["a.jpg"].captions == ("A dog | runs .", "A dog runs across the grass .")

    def test_joins_captions_from_rows_that_are_apart(self, tmp_path: Path) -> None:
        found = read(write_text(tmp_path / "a.csv", "image,caption\nb,1\na,2\nb,3\n"))
        assert [picture.captions for picture in found.pictures.values()] == [("1", "3"), ("2",)]

    @pytest.mark.parametrize(
        "text",
        [
            "image_name| comment_number| comment\na.jpg| 0| one\na.jpg| A dog runs across the grass .\n",
            "a.jpg#0\tone\na.jpg#1\n",
            "image,caption\na.jpg,one\na.jpg,\n",
        ],
    )
    def test_rejects_damaged_rows(self, tmp_path: Path, text: str) -> None:
        path = write_text(tmp_path / "a.csv", text)
        error = read(path).one_error()
        assert error.source.startswith(f"{path} line ")

    def test_rejects_an_unclosed_quote(self, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="not CSV"):
            read(write_text(tmp_path / "a.csv", 'image,caption\na.jpg,"one\n'))


class TestImageFolder:
    ROWS: ClassVar[list[dict[str, Any]]] = [
        {"file_name": "train/ä 1.png", "text": "a roof", "label": "house", "height": 3, "score": 1, "tags": ["x"]},
        {
            "file_name": "2.png",
            "text": ["one", "two"],
            "label": "tree",
            "height": 4,
            "score": 0.5,
            "tags": [],
            "objects": {"bbox": [[1, 2, 3, 4], [0, 0, 2.5, 1]], "categories": ["leaf", "root"], "area": [12, 2.5]},
        },
    ]

    def test_reads_objects_from_a_list_of_dicts(self, tmp_path: Path) -> None:
        one, two = {"bbox": [1, 2, 3, 4], "category": "leaf"}, {"bbox": [0, 0, 2, 1], "category": "root", "iscrowd": 1}
        rows = [{"file_name": "a.png", "objects": [one, two]}, {"file_name": "b.png", "objects": []}]
        write_text(tmp_path / "metadata.jsonl", "\n".join(map(json.dumps, rows)))
        pictures = read(tmp_path / "metadata.jsonl").pictures
        first, second = pictures["a.png"].objects
        assert (first.class_name, first.box, first.is_crowd) == ("leaf", (2, 1, 6, 4), False)
        assert (second.class_name, second.box, second.is_crowd) == ("root", (0, 0, 1, 2), True)
        assert pictures["b.png"].objects == ()

    def test_reads_captions_classes_objects_and_values_of_jsonl(self, tmp_path: Path) -> None:
        text = "\n".join(json.dumps(row) for row in self.ROWS)
        write_text(tmp_path / "metadata.jsonl", text)
        for path in (tmp_path, tmp_path / "metadata.jsonl"):
            found = read(path)
            first, second = found.pictures["train/ä 1.png"], found.pictures["2.png"]
            assert (first.captions, second.captions) == (("a roof",), ("one", "two"))
            assert (first.classes, second.classes) == (("house",), ("tree",))
            assert [(item.box, item.class_name, item.area) for item in second.objects] == [
                ((2, 1, 6, 4), "leaf", 12),
                ((0, 0, 1, 2.5), "root", 2.5),
            ]
            assert dict(second.values) == {"height": 4, "score": 0.5, "tags": []}
            assert {(item.name, item.kind, item.shape) for item in found.contents.value_features} == {
                ("height", "int64", ()),
                ("score", "float", ()),
                ("tags", "bytes", (None,)),
            }

    def test_reads_csv_with_whole_numbers_as_labels(self, tmp_path: Path) -> None:
        found = read(write_files(tmp_path, {"metadata.csv": 'file_name,text,label\n0.png,"a, b",7\n1.png,c,10\n'}))
        assert found.pictures["0.png"].captions == ("a, b",)
        assert found.contents.class_names == tuple(map(str, range(11)))

    def test_columns_of_a_csv_are_numbers_if_all_their_cells_are(self, tmp_path: Path) -> None:
        rows = (
            "file_name,text,count,code,score,gap,id,wide,big,mixed",
            "a.png,1,7,007,1,,9,1,16777217,16777217",
            "b.png,2,-8,8,0.5,3.5,,99999999999999999999,1,0.5",
        )
        found = read(write_text(tmp_path / "metadata.csv", "\n".join(rows)))
        values = dict(found.pictures["a.png"].values)
        gap = values.pop("gap")
        assert gap != gap
        assert values == {
            "count": 7,
            "code": "007",
            "score": 1.0,
            "id": "9",
            "wide": "1",
            "big": 16777217,
            "mixed": "16777217",
        }
        assert {item.name: item.kind for item in found.contents.value_features} == {
            "count": "int64",
            "code": "bytes",
            "score": "float",
            "gap": "float",
            "id": "bytes",
            "wide": "bytes",
            "big": "int64",
            "mixed": "bytes",
        }
        assert found.pictures["a.png"].captions == ("1",)

    def test_ignores_and_lists_columns_of_unsupported_types(self, tmp_path: Path) -> None:
        rows: list[dict[str, Any]] = [
            {"file_name": "a", "nested": {"x": 1}, "mixed": 1, "big": 2**70},
            {"file_name": "b", "nested": {"x": 1}, "mixed": "1", "big": 1},
        ]
        found = read(write_text(tmp_path / "metadata.jsonl", "\n".join(map(json.dumps, rows))))
        assert found.contents.value_features == ()
        assert found.contents.ignored_values == ("big", "mixed", "nested")

    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            ("{}", "no 'file_name'"),
            ("[1]", "no JSON object"),
            ('{"file_name": "x"', "not JSON"),
            ('{"file_name": "2.png"}', "listed twice"),
            ('{"file_name": "x", "label": 1.5}', "a class is neither"),
            ('{"file_name": "x", "text": 1}', "'text' is neither"),
            ('{"file_name": "x", "objects": {"bbox": [[1, 2, 3]]}}', "'bbox'"),
            ('{"file_name": "x", "objects": {"bbox": [[1, 2, "3", "4"]]}}', "'bbox'"),
            ('{"file_name": "x", "objects": {"bbox": [[1, 2, 3, 4]], "categories": []}}', "'categories'"),
        ],
    )
    def test_rejects_damaged_rows(self, tmp_path: Path, row: str, reason: str) -> None:
        text = "\n".join([json.dumps(self.ROWS[1]), "", row])
        error = read(write_text(tmp_path / "metadata.jsonl", text)).one_error()
        assert error.source == f"{tmp_path / 'metadata.jsonl'} line 3"
        assert reason in error.reason


class TestTinyImagenet:
    def test_boxes_include_the_pixels_of_their_edges(self, tmp_path: Path) -> None:
        text = "val_0.JPEG\tn03444034\t0\t32\t44\t62\nval_1.JPEG\tn02\t0\t0\t63\t63\n"
        found = read(write_files(tmp_path, {"val_annotations.txt": text, "images/val_0.JPEG": b""}))
        picture = found.pictures["val_0.JPEG"]
        assert picture.classes == ("n03444034",)
        assert only_object(picture).box == (32, 0, 63, 45)
        # A whole picture of 64 x 64 pixels.
        assert only_object(found.pictures["val_1.JPEG"]).box == (0, 0, 64, 64)
        assert not found.contents.several_classes

    @pytest.mark.parametrize(
        ("row", "reason"), [("val_0.JPEG\tn02\t0\t0", "no row"), ("a\tn1\t0\t0\t1\t1", "listed twice")]
    )
    def test_rejects_damaged_rows(self, tmp_path: Path, row: str, reason: str) -> None:
        path = write_text(tmp_path / "val_annotations.txt", f"a\tn02\t0\t0\t63\t63\n{row}\n")
        assert reason in read(path).one_error().reason


class TestOxfordPets:
    LIST = "#Image CLASS-ID SPECIES BREED ID\n#ID: 1:37 class ids\nAbyssinian_100 1 1 1\ngreat_pyrenees_7 16 2 9\nBombay_1 2 1 2\n"

    def test_takes_classes_from_names_and_finds_trimaps(self, tmp_path: Path) -> None:
        files: dict[str, str | bytes] = {
            "annotations/list.txt": self.LIST,
            "annotations/trainval.txt": "Bombay_1 2 1 2\n",
            "annotations/trimaps/Abyssinian_100.png": MAP,
            "annotations/trimaps/._Abyssinian_100.png": b"",
            "annotations/xmls/Abyssinian_100.xml": "<annotation><filename>Abyssinian_100.jpg</filename></annotation>",
            "images/Abyssinian_100.jpg": b"",
        }
        found = read(write_files(tmp_path, files))
        picture = found.pictures["Abyssinian_100"]
        assert picture.classes == ("Abyssinian",)
        assert picture.map_file == MapFile(str(tmp_path / "annotations" / "trimaps" / "Abyssinian_100.png"))
        assert dict(found.pictures["great_pyrenees_7"].values) == {"species": 2}
        assert found.contents.class_names == ("Abyssinian", "Bombay", "great_pyrenees")
        assert list(read(tmp_path / "annotations" / "trainval.txt").pictures) == ["Bombay_1"]
        assert list(read(tmp_path / "annotations" / "xmls").pictures) == ["Abyssinian_100.jpg"]

    def test_rejects_damaged_rows(self, tmp_path: Path) -> None:
        found = read(write_text(tmp_path / "list.txt", self.LIST + "Bombay_2 2 3 2\nBombay_1 2 1 2\n"))
        assert [error.source.rpartition(" ")[2] for error in found.errors] == ["6", "7"]
        with pytest.raises(SourceError, match="class 2 is 'Birman' here"):
            read(write_text(tmp_path / "list.txt", self.LIST + "Birman_1 2 1 2\n"))


class TestLabelMaps:
    def test_reads_cityscapes_label_ids_or_train_ids(self, tmp_path: Path) -> None:
        stem = "gtFine/train/aachen/aachen_000000_000019_gtFine"
        files: dict[str, str | bytes] = {
            f"{stem}_labelIds.png": MAP,
            f"{stem}_instanceIds.png": png_of([[1]], 16),
            f"{stem}_color.png": b"",
            f"{stem}_polygons.json": "{}",
            "leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png": b"",
        }
        found = read(write_files(tmp_path, files))
        assert {name: picture.map_file for name, picture in found.pictures.items()} == {
            "train/aachen/aachen_000000_000019_leftImg8bit": MapFile(str(tmp_path / f"{stem}_labelIds.png"))
        }
        write_files(tmp_path, {f"{stem}_labelTrainIds.png": MAP})
        (picture,) = read(tmp_path / "gtFine").pictures.values()
        assert picture.map_file == MapFile(str(tmp_path / f"{stem}_labelTrainIds.png"))

    def test_ade20k_maps_keep_the_folders_of_their_pictures(self, tmp_path: Path) -> None:
        files: dict[str, str | bytes] = {
            "annotations/training/ADE_train_00000001.png": MAP,
            "annotations/validation/ADE_val_00000001.png": MAP,
            "images/training/ADE_train_00000001.jpg": b"",
        }
        found = read(write_files(tmp_path, files) / "annotations")
        assert list(found.pictures) == ["training/ADE_train_00000001", "validation/ADE_val_00000001"]

    def test_reads_maps_with_palettes(self, tmp_path: Path) -> None:
        found = read(write_files(tmp_path, {"SegmentationClass/2007_1.png": png_of([[1]], 8, PALETTE)}))
        assert list(found.pictures) == ["SegmentationClass/2007_1"]
