"""Write scikit-learn's 1,797 handwritten digits, 8 x 8 pixels, to a file that vitft reads.

pip install scikit-learn
python docs/digits.py digits.npz
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

digits = load_digits()
np.savez(sys.argv[1], x=np.round(digits.images * (255 / 16)).astype(np.uint8), y=digits.target)
