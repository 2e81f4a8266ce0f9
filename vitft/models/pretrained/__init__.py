"""Pretrained weights: load a model from a name or a file, and report what was loaded.

The steps, in order:
    locate    the name or path -> a catalogue entry or a file     (without torch)
    fetch     a catalogue entry or hub repository -> a verified file
    read      a file -> tensors; nothing in it is executed
    convert   tensor names and layouts of other tools -> vitft's
    infer     tensor shapes -> the architecture
    adapt     tensors -> a different class count, image size, patch size, channel count or pooling
    load      all steps: `load_pretrained`, or `load_backbone`, which also supports timm models

Supporting modules:
    catalog       entries of weights/catalog.toml                 (without torch)
    sidecar       facts from the config.json next to a weight file
    weights       `open_pretrained`: the steps from locate to infer, with checks
    timm_weights  timm:NAME, any timm model
    report        descriptions of a file's content and of the effects of loading it
"""
