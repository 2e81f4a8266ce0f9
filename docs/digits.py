"""Write scikit-learn's 1,797 handwritten digits, 8 x 8 pixels, to a file that vitft reads.

pip install scikit-learn
python docs/digits.py digits.npz
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

if len(sys.argv) != 2:
    sys.exit(__doc__)
digits = load_digits()
path = Path(sys.argv[1])
path = path if path.suffix == ".npz" else Path(f"{path}.npz")  # as numpy.savez names it
np.savez(path, x=np.round(digits.images * (255 / 16)).astype(np.uint8), y=digits.target)
print(f"{path}: {len(digits.target):,} images of 8 x 8 pixels in 10 classes")
