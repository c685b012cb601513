"""Annotations as one text: what was put in comes out, and an untrusted name stays a name."""

from __future__ import annotations

import random

from portagpu.facts.captures.labels import DOMAIN, decode, encode

ALPHABET = "ab:.-_ %25{}'\"\\\n\0\x7f\x85\ud800é\U0001f600,"


def test_anything_comes_back_and_suits_every_profiler():
    draw = random.Random(7)  # noqa: S311

    def word():
        return "".join(draw.choice(ALPHABET) for _ in range(draw.randrange(8)))

    for _ in range(20_000):
        values = (word(), draw.randrange(-9, 2**63), draw.random(), True, False, 1e300)
        labels = {word(): draw.choice(values) for _ in range(draw.randrange(3))}
        name, domain, ascii_only = word(), draw.choice(("", DOMAIN, "x.y-z")), draw.random() < 0.5
        text = encode(name, labels, domain, ascii_only=ascii_only)
        assert decode(text) == (name, labels, domain)
        assert [type(each) for each in decode(text)[1].values()] == [
            type(each) for each in labels.values()
        ]
        assert not set(text) & set('"\\\n\0\x7f\x85\ud800'), "Kineto writes it into JSON as it is"
        assert text.isascii() or not ascii_only
        text.encode()
