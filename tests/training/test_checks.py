"""Checks of a request before torch is imported and before any image is read."""

from pathlib import Path

from tests.conftest import draw_folder
from tests.support.children import python


def test_classes_of_one_file_are_refused_without_importing_torch(tmp_path: Path) -> None:
    data = draw_folder(tmp_path / "data", per_class=6)
    for name in ("blue", "green"):
        for path in sorted((data / name).iterdir())[1:]:
            path.unlink()
    code = (
        "import sys\nfrom vitft.cli.main import main\n"
        f"code = main(['finetune', '--data', {str(data)!r}, '--weights', 'demo'])\n"
        "assert code == 3, code\nsys.exit('torch' in sys.modules)"
    )

    done = python(code, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "blue (1)" in done.stderr
