"""Pretrained weights: load a model from a name or a file, and report what was loaded.

The steps, in order:
    catalog   the name or path -> a catalogue entry or a file     (without torch)
    fetch     a catalogue entry or hub repository -> a verified file
    read      a file -> tensors; nothing in it is executed
    convert   tensors of other tools -> vitft's names and layouts, and the architecture
    weights   `open_pretrained`: these steps, with what config.json states, and checks
    load      all steps, and another class count, image size, patch size, channel count or pooling
"""
