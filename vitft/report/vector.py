"""Makes matplotlib's SVG fit a page that allows no style attributes and has two colour schemes.

Every inline style becomes an attribute or a class: a colour of `INKS` becomes the class of its
meaning, so that the page's style sheet decides. Words stay text.
"""

import re
from collections.abc import Mapping
from xml.etree import ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
INKS: Mapping[str, str] = {
    "#010101": "ink",
    "#020202": "muted",
    "#030303": "line",
    "#040404": "accent",
    "#050505": "second",
    "#060606": "ground",
    "#070707": "bad",
}
"""Stand-in colours to draw with, and what they mean."""
KEPT = ("stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "stroke-opacity")
"""Style properties that stay, as attributes of the same name."""
USELESS = ("stroke-dasharray: none",)


def ink(meaning: str) -> str:
    """The stand-in colour of a meaning."""
    return next(colour for colour, name in INKS.items() if name == meaning)


def themed(svg: str, *, key: str, label: str) -> str:
    """The SVG as markup for a page.

    Args:
        svg: As matplotlib writes it with `svg.fonttype` none.
        key: Prefix that keeps its ids apart from those of other charts.
        label: What the picture shows, for those who do not see it.
    """
    root = ET.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{SVG}metadata", f"{SVG}style"):
                parent.remove(child)
    rename_ids(root, key)
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
        restyle(element)
    box = root.get("viewBox", "0 0 1 1")
    root.attrib.clear()
    # The namespace is HTML's business: the parser knows svg.
    root.attrib.update({"viewBox": box, "class": "chart", "role": "img", "aria-label": label})
    return ET.tostring(root, encoding="unicode", short_empty_elements=False)


def rename_ids(root: ET.Element, key: str) -> None:
    """Give referenced elements ids of their own and drop all others."""
    used: dict[str, str] = {}
    for element in root.iter():
        for value in element.attrib.values():
            for name in re.findall(r"^#(.+)$|url\(#(.+?)\)", value):
                used.setdefault("".join(name), f"{key}-{len(used)}")
    for element in root.iter():
        name = element.attrib.pop("id", "")
        if name in used:
            element.set("id", used[name])
        for attribute, value in list(element.attrib.items()):
            swapped = re.sub(
                r"^#(.+)$|url\(#(.+?)\)",
                lambda m: f"#{used[m[1]]}" if m[1] else f"url(#{used[m[2]]})",
                value,
            )
            element.set(attribute, swapped)
        if LINK in element.attrib:
            element.set("href", element.attrib.pop(LINK))


def restyle(element: ET.Element) -> None:
    """Turn a style attribute into classes and attributes."""
    text = element.attrib.pop("style", "")
    names = []
    for rule in filter(None, (part.strip() for part in text.split(";"))):
        name, _, value = (part.strip() for part in rule.partition(":"))
        if name in ("fill", "stroke"):
            if value in INKS:
                names.append(f"{name[0]}-{INKS[value]}")
            else:
                element.set(name, value)
        elif name in ("font", "font-size") and (size := re.search(r"([\d.]+)px", value)):
            element.set("font-size", size[1])  # the family is the page's
        elif name == "text-anchor" or (name in KEPT and rule not in USELESS):
            element.set(name, value)
    if element.tag == "text" and not any(name.startswith("f-") for name in names):
        names.append("f-ink")
    if names:
        element.set("class", " ".join(names))
