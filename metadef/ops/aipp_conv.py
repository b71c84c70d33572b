"""A convolution over camera pictures: AIPP and the first layer as one operator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metadef.error import InferError
from metadef.format import TensorDesc
from metadef.op import FLOATS, Attrs, CostClass, FormatRule, OpDef, Port, register
from metadef.ops.aipp import IMAGES, PICTURE_ATTRS, image_desc, picture_reference
from metadef.ops.common import array, operand, optional
from metadef.ops.cube import CONV_ATTRS, conv2d_reference, infer_conv
from metadef.ops.numeric import narrow, widen


def _conv_attrs(attrs: Attrs) -> Attrs:
    return {attr.name: attrs[attr.name] for attr in CONV_ATTRS}


def _infer(inputs: Sequence[TensorDesc | None], attrs: Attrs) -> list[TensorDesc]:
    image, weight = image_desc(inputs, attrs), operand(inputs, 1)
    if weight.dtype is not image.dtype:
        expected, got = image.dtype.label, weight.dtype.label
        raise InferError("element types differ", code="E14001", port="filter", expected=expected, got=got)
    return infer_conv([image, *inputs[1:]], _conv_attrs(attrs))


def _reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
    """The images are rounded to their type before they are multiplied."""
    dtype, wide = attrs["dst_type"], array(inputs, 1).dtype.type
    image = widen(narrow(picture_reference(inputs, attrs), dtype), dtype, wide)
    return conv2d_reference([image, *inputs[1:]], _conv_attrs(attrs))


register(
    OpDef(
        "AippConv2D",
        inputs=(IMAGES, Port("filter", FLOATS), optional("bias", FLOATS)),
        outputs=(Port("y", FLOATS),),
        infer=_infer,
        reference=_reference,
        doc="A first convolution that reads camera pictures: Conv2D of the images that Aipp makes of them on their way "
        "into L1; they never lie in memory. Attributes are those of both. The compiler makes it of the two.",
        attrs=(*PICTURE_ATTRS, *CONV_ATTRS),
        formats=FormatRule.PICTURE,
        cost=CostClass.CONV,
    )
)
