"""`vitft study`: how accuracy grows with the images of each class, weights beside weights.

    plan      what was asked for, checked before any work          (no torch)
    draws     which images train and which test, by seed           (no torch)
    features  weights, pixels and colours -> one row per image
    curves    heads on those rows, accuracies and their intervals
    picture   the curves as a PNG                                  (no torch)
    words     the figures as JSON, Markdown and sentences          (no torch)

Source of the experiment: Dosovitskiy et al. 2021, figure 4 (linear few-shot accuracy over the
data), https://arxiv.org/abs/2010.11929; the draws of a few images per class are those of
Kolesnikov et al. 2020 (BiT), https://arxiv.org/abs/1912.11370.
"""
