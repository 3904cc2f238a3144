import subprocess
import sys
import types

import pytest

from tpudata import models
from tpudata.errors import UsageError


def test_bundled_models_by_name() -> None:
    assert models.model_names() == ["mnist_cnn"]
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
        ("", "Did you mean 'mnist_cnn'"),
        ("no_such_package.module:f", "no module 'no_such_package'"),
        ("tpudata.no_such:f", "no module 'tpudata.no_such'"),
        (":f", "package.module:function"),
        ("tpudata.models:", "no function ''"),
        ("tpudata.models:__doc__", "no function '__doc__'"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        models.get_model(name)


def test_the_names_load_no_tensorflow() -> None:
    code = "import sys, tpudata.models as m; m.model_names(); print('tensorflow' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
