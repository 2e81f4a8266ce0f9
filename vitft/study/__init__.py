"""Few-shot accuracy of several pretrained weights on one folder (`vitft study`).

    plan      the study to run, checked before any computation           (no torch)
    features  one feature vector per image: backbones and baselines
    run       training and test images of each seed, linear heads on the features
    results   accuracies, intervals and differences, as files and text   (no torch)

Source of the experiment: Dosovitskiy et al. 2021, figure 4 (linear few-shot accuracy by number of
images), https://arxiv.org/abs/2010.11929; drawing a few images per class follows Kolesnikov et al.
2020 (BiT), https://arxiv.org/abs/1912.11370.
"""
