"""Drawings: what the cells say, in text and SVG."""

import xml.etree.ElementTree as ElementTree

import pytest

from smalti.errors import SmaltiError
from smalti.layout import draw, fragments, tensor
from smalti.layout.linear import Layout
from smalti.layout.shared import SharedTile


def test_text_of_a_fragment():
    lines = draw.text(fragments.mma_d()).splitlines()
    assert lines[0] == "cells: lane.register"
    assert lines[1].split() == ["row\\column", *map(str, range(8))]
    assert len(lines) == 18
    assert lines[2].split() == ["0", "0.0", "0.1", "1.0", "1.1", "2.0", "2.1", "3.0", "3.1"]
    assert lines[12].split() == ["10", "8.2", "8.3", "9.2", "9.3", "10.2", "10.3", "11.2", "11.3"]
    assert len({len(line) for line in lines[1:]}) == 1


def test_text_over_indices():
    lines = draw.text(SharedTile(8, 16, "bf16", "32B").swizzled).splitlines()
    assert lines[0] == "cells: offset"
    assert lines[2].split() == ["0", *map(str, range(0, 32, 2))]
    # row 4 is the next 128-byte line: chunks of 16 bytes change places
    assert lines[6].split()[1:10] == ["144", "146", "148", "150", "152", "154", "156", "158", "128"]


def test_holes_and_copies():
    drawn = draw.grid(tensor.accumulator(64, 8), "lane", "column")
    assert drawn.labels[15][3] == "15.3" and drawn.labels[16][3] == "" and drawn.labels[32][3] == "16.3"
    assert drawn.colour[16][3] == -1
    drawn = draw.grid(Layout({"i": [(2, {"x": 1})], "replica": [(2, {"x": 0})]}, ["x", "y"]))
    assert drawn.labels == [["0.0/0.1"], ["1.0/1.1"]]
    assert "-" in draw.text(tensor.accumulator(64, 8), "lane", "column")


def test_places_not_drawn_are_in_the_label():
    drawn = draw.grid(tensor.accumulator(256, 16, 2), "lane", "column")
    assert drawn.legend == "m.n.cta"
    assert drawn.labels[5][2] == "5.2.0/133.2.1"


def test_svg():
    layout = fragments.wgmma_a(16)
    root = ElementTree.fromstring(draw.svg(layout))
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}rect")) == 64 * 16
    words = [t.text for t in root.findall(f"{space}text")]
    assert words[0] == "k (cells: thread.register.part)"
    assert words.count("127.3.1") == 1
    assert root.find(f"{space}title").text == "Layout thread 128, register 4, part 2 -> row, k"
    fills = {r.get("fill") for r in root.findall(f"{space}rect")}
    assert len(fills) > 60 and "none" not in fills
    odd = Layout({"<i>": [(2, {"&": 1})], "j": [(2, {"&": 2})]}, ["&"])
    ElementTree.fromstring(draw.svg(odd))


def test_refusals():
    draw.grid(fragments.mma_d(), "row", "column")
    draw.grid(fragments.mma_d(), "lane", "register")
    for names, code in ((("row", "lane"), "SML0404"), (("rows", "column"), "SML0404")):
        with pytest.raises(SmaltiError) as caught:
            draw.grid(fragments.mma_d(), *names)
        assert caught.value.code == code
    with pytest.raises(SmaltiError) as caught:
        draw.text(SharedTile(512, 256, "u8").layout)
    assert caught.value.code == "SML0405"
