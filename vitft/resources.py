"""Where the files that travel with the package lie: recipes and weights.

They stand at the top of the repository; a wheel carries them inside the package.
"""

from pathlib import Path

HERE = Path(__file__).parent


def resource(name: str) -> Path:
    """Path of a top-level folder or file such as `recipes` or `weights/catalog.toml`."""
    packed = HERE / name
    return packed if packed.exists() else HERE.parent / name
