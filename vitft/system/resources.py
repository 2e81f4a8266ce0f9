"""Where the files that travel with the package lie: recipes and weights.

They stand at the top of the repository; a wheel carries them inside the package.
"""

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def resource(name: str) -> Path:
    """Path of a top-level folder or file such as `recipes` or `weights/catalog.toml`."""
    packed = PACKAGE / name
    return packed if packed.exists() else PACKAGE.parent / name
