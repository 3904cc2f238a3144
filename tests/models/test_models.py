import dataclasses
import importlib
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tpudata import models
from tpudata.errors import UsageError


def test_get_model_returns_each_bundled_model() -> None:
    assert models.model_names() == [
        "char_lstm",
        "iris_mlp",
        "mnist_cnn",
        "resnet",
        "text_classifier",
        "tiny_lm",
        "unet",
    ]
    for name in models.model_names():
        assert callable(models.get_model(name))


def test_get_model_returns_the_users_function(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_models")
    module.my_fn = lambda features: features  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_models", module)
    assert models.get_model("my_models:my_fn") is module.my_fn
    with pytest.raises(UsageError, match="Did you mean 'my_fn'"):
        models.get_model("my_models:my_fm")


def test_names_the_line_of_a_syntax_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_model.py").write_text("import os\ndef model_fn(:\n    pass\n")
    with pytest.raises(UsageError, match=r"/broken_model\.py, line 2: invalid syntax\. Correct it\.$"):
        models.get_model("broken_model:model_fn")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mnist", "Did you mean 'mnist_cnn'"),
        ("", "There is no model ''"),
        ("no_such_package.module:f", "no module 'no_such_package'"),
        ("tpudata.no_such:f", "no module 'tpudata.no_such'"),
        (":f", "package.module:function"),
        ("tpudata.models:", "package.module:function"),
        ("tpudata..models:f", "package.module:function"),
        ("tpudata.models:no_such", "no function 'no_such'"),
        ("tpudata.models:__doc__", "no function '__doc__'"),
    ],
)
def test_rejects_unknown_names(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        models.get_model(name)


@pytest.mark.parametrize("name", ["mnist", "no_such_package.module:f", ":f", "tpudata.models:"])
def test_check_model_name_loads_no_module(name: str) -> None:
    with pytest.raises(UsageError):
        models.check_model_name(name)
    for good in ("mnist_cnn", "tpudata.not_looked_for_yet:f"):
        models.check_model_name(good)


def test_rejects_a_class_that_makes_no_model() -> None:
    with pytest.raises(UsageError, match="builtins:dict: its objects need a method model_fn"):
        models.make_model_fn(dict, {"units": 3})


def test_listing_names_loads_no_tensorflow() -> None:
    code = "import sys, tpudata.models as m; m.model_names(); print('tensorflow' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("name", "params_class"),
    [
        ("char_lstm", "CharLstmParams"),
        ("iris_mlp", "IrisMlpParams"),
        ("mnist_cnn", "MnistCnnParams"),
        ("resnet", "ResNetParams"),
        ("text_classifier", "TextClassifierParams"),
        ("tiny_lm", "TinyLmParams"),
        ("unet", "UnetParams"),
    ],
)
def test_the_docs_list_every_parameter_with_its_default(name: str, params_class: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "models.md").read_text(encoding="utf-8")
    common, own = _documented(text, "Params of training"), _documented(text, name)
    fields = dataclasses.fields(getattr(importlib.import_module(f"tpudata.models.{name}"), params_class))
    assert {**common, **own} == {field.name: _default_text(field.default) for field in fields}


def _documented(text: str, heading: str) -> dict[str, str]:
    """The defaults of a section's table, by parameter."""
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found: dict[str, str] = {}
    for line in section.splitlines():
        if line.startswith("| `"):
            keys, defaults, _ = line[2:].split(" | ", 2)
            names = re.findall(r"`(\w+)`", keys)
            found |= zip(names, defaults.split(", ") if len(names) > 1 else [defaults], strict=True)
    return found


def _default_text(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "needed"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, tuple):
        return str([*value]) if value else "none"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)
