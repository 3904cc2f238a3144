import subprocess
import sys

import pytest

from tpudata._tensorflow import require_tensorflow
from tpudata.errors import MissingExtraError

# A finder that hides TensorFlow as if it were not installed.
WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = None
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == "tensorflow":
            raise ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow")
del sys.modules["tensorflow"]
sys.meta_path.insert(0, Hide())
from tpudata.errors import MissingExtraError
try:
    import tpudata.estimator
except MissingExtraError as error:
    print(error)
"""


def test_names_the_extra_if_tensorflow_is_missing() -> None:
    result = subprocess.run([sys.executable, "-c", WITHOUT_TENSORFLOW], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == str(MissingExtraError("tpudata.estimator", "tensorflow"))


def test_a_broken_tensorflow_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ModuleNotFoundError("No module named 'absl'", name="absl")

    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="absl") as caught:
        require_tensorflow("tpudata.estimator")
    assert not isinstance(caught.value, MissingExtraError)


def test_accepts_an_installed_tensorflow() -> None:
    require_tensorflow("tpudata.estimator")
