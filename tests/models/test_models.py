import subprocess
import sys
import types

import pytest

from tpudata import models
from tpudata.errors import UsageError


def test_bundled_models_by_name() -> None:
    assert models.model_names() == ["char_lstm", "iris_mlp", "mnist_cnn", "resnet", "tiny_lm"]
    for name in models.model_names():
        assert callable(models.get_model(name))


def test_a_function_of_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_models")
    module.my_fn = lambda features: features  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_models", module)
    assert models.get_model("my_models:my_fn") is module.my_fn
    with pytest.raises(UsageError, match="Did you mean 'my_fn'"):
        models.get_model("my_models:my_fm")


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
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        models.get_model(name)


@pytest.mark.parametrize("name", ["mnist", "no_such_package.module:f", ":f", "tpudata.models:"])
def test_some_names_are_refused_without_loading_anything(name: str) -> None:
    with pytest.raises(UsageError):
        models.check_model_name(name)
    for good in ("mnist_cnn", "tpudata.not_looked_for_yet:f"):
        models.check_model_name(good)


def test_the_names_load_no_tensorflow() -> None:
    code = "import sys, tpudata.models as m; m.model_names(); print('tensorflow' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
