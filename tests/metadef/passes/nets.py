"""Networks as text that several tests of passes start from."""

from __future__ import annotations


def first_layer(x: str) -> str:
    """A first convolution of stride 2 over three channels and its activation; ``x`` is the input's type and shape."""
    return f"""
graph("first"):
  %x : {x} = Data()
  %w : {x.partition("[")[0]}[32,3,3,3] = Const(seed=1)
  %a = Conv2D(x=%x, filter=%w) {{strides=[1, 1, 2, 2], pads=[1, 1, 1, 1]}}
  %b = Relu(x=%a)
  return (%b as "b")
"""
