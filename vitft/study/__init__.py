"""Few-shot accuracy of several pretrained models on one folder (`vitft study`).

    plan     plan of a study, validated before any computation          (no torch)
    run      features, fitting of linear heads, accuracies and intervals, as files and text

The experiment follows the linear few-shot evaluation of Dosovitskiy et al. 2021 (figure 4),
https://arxiv.org/abs/2010.11929, and samples a few images per class, as in Kolesnikov et al. 2020
(BiT), https://arxiv.org/abs/1912.11370.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
