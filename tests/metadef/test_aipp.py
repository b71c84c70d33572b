"""AIPP configurations: what files say, by line, and what they mean for an input."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.aipp import AippOp, parse_insert_op_conf, read_insert_op_conf
from metadef.error import UsageError

HEAD = "aipp_mode: static input_format: RGB888_U8"


def problems(text: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        parse_insert_op_conf(text, "aipp.cfg")
    assert caught.value.exit_code == 2
    return [str(item) for item in caught.value.problems]


def test_a_file_as_they_are_written(tmp_path):
    path = tmp_path / "aipp.cfg"
    path.write_text(
        '# pictures of a camera\naipp_op {\n  aipp_mode : static\n  related_input_name: "image"\n'
        "  input_format: YUV420SP_U8 ; csc_switch: true, rbuv_swap_switch : false\n  matrix_r0c2: 409\n"
        "  min_chn_0: 123.675 # ImageNet\n  var_reci_chn_0: 0.0171f\n}\n\naipp_op: { "
        f"{HEAD} related_input_rank: 1 crop: 0 padding: 1 left_padding_size: 3 padding_value: -2.5e-1 }}"
    )
    first, second = read_insert_op_conf(path)
    assert first.values["related_input_name"] == "image" and first.values["csc_switch"] is True
    assert (
        first.values["matrix_r0c2"] == 409 and first.values["matrix_r1c1"] == 256 and first.values["matrix_r0c1"] == 0
    )
    assert first.values["min_chn_0"] == float(np.float16(123.675))
    assert first.numbers("var_reci_chn_", 4) == (float(np.float16(0.0171)), 1.0, 1.0, 1.0)
    assert second.values["padding"] is True and second.values["crop"] is False
    assert second.values["padding_value"] == -0.25 and second.values["related_input_rank"] == 1
    assert second.place == f"{path}:11"


def test_all_faults_are_told_with_their_lines():
    found = problems(
        "aipp_op {\n  aipp_mode: static\n  input_format: RGB88_U8\n  crop_sise_w: 224\n  mean_chn_0: 300\n"
        "  mean_chn_1: 1.5\n  csc_switch: maybe\n  mean_chn_2: 3\n  mean_chn_2: 4\n  resize: true\n}\n"
    )
    lines = [text.split("port 'aipp.cfg:")[1].split("'")[0] for text in found]
    assert lines == ["3", "4", "5", "6", "7", "9", "10"]
    assert all(text.startswith("E10052") for text in found)
    assert "did you mean 'RGB888_U8'" in found[0] and "did you mean 'crop_size_w'" in found[1]
    assert "a whole number from 0 to 255" in found[2] and "true or false" in found[4]
    assert "stands at aipp.cfg:8 already" in found[5] and "scale the picture before" in found[6]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no aipp_op block"),
        ("aipp { a: 1 }", "'aipp' is no block"),
        (f"aipp_op {{ {HEAD}", "the block is never closed"),
        ("aipp_op aipp_mode: static }", "a block opens with '{'"),
        (f"aipp_op {{ {HEAD} crop: }}", "'crop' has no value"),
        (f"aipp_op {{ {HEAD} crop true }}", "'crop' is not understood"),
        (f'aipp_op {{ {HEAD} related_input_name: "x }}', "quotation mark is never closed"),
        ("aipp_op { input_format: RGB888_U8 }", "'aipp_mode' is missing"),
        ("aipp_op { aipp_mode: static }", "'input_format' is missing"),
        (f"aipp_op {{ {HEAD} related_input_name: x related_input_rank: 1 }}", "by name and by rank"),
        ("aipp_op { aipp_mode: static input_format: YUYV_U8 }", "pictures of YUYV_U8 are not supported"),
        (f"aipp_op {{ {HEAD} min_chn_0: nan }}", "out of range"),
        (f"aipp_op {{ {HEAD} left_padding_size: 33 }}", "from 0 to 32"),
    ],
)
def test_one_fault(text, message):
    assert message in "\n".join(problems(text))


def test_dynamic_aipp_says_what_to_do():
    (found,) = problems("aipp_op {\n aipp_mode: dynamic\n max_src_image_size: 100\n}")[:1]
    assert "belongs to dynamic AIPP" in found
    (found,) = problems("aipp_op { aipp_mode: dynamic }")
    assert found.startswith("E10055") and "dynamic AIPP is not supported" in found and "static block" in found


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match=r"E10410.*cannot read AIPP configuration"):
        read_insert_op_conf(tmp_path / "none.cfg")


def test_a_byte_order_mark_and_line_ends_of_windows(tmp_path):
    path = tmp_path / "windows.cfg"
    path.write_bytes(b"\xef\xbb\xbfaipp_op {\r\n aipp_mode: static\r\n input_format: RGB888_U8\r\n}\r\n")
    (block,) = read_insert_op_conf(path)
    assert block == AippOp.of(aipp_mode="static", input_format="RGB888_U8")


def test_a_file_that_is_no_configuration_by_its_size(tmp_path):
    path = tmp_path / "large.cfg"
    path.write_text("# a remark\n" * 30000)
    with pytest.raises(UsageError, match=r"E10410.*cannot read AIPP configuration.*\n.*more than 262,144 bytes"):
        read_insert_op_conf(path)


def test_sizes_come_from_the_model_where_the_file_states_none():
    block = AippOp.of(aipp_mode="static", input_format="RGB888_U8")
    assert block.images_shape((2, 3, 20, 30)) == (2, 20, 30, 3)
    attrs = block.attrs((2, 3, 20, 30))
    assert attrs["crop_size"] == (20, 30) and attrs["load_start_pos"] == (0, 0) and attrs["channels"] == 3
    sides = {"padding": True, "top_padding_size": 1, "left_padding_size": 4}
    padded = AippOp.of(aipp_mode="static", input_format="YUV420SP_U8", **sides)
    assert padded.images_shape((1, 3, 21, 34)) == (1, 30, 30, 1)
    assert padded.attrs((1, 3, 21, 34))["padding"] == (1, 0, 4, 0)
    cut = AippOp.of(
        aipp_mode="static", input_format="RGB888_U8", crop=True, load_start_pos_h=3, src_image_size_h=40,
        src_image_size_w=50, crop_size_w=30,
    )  # fmt: skip
    assert cut.images_shape((1, 3, 20, 30)) == (1, 40, 50, 3)
    assert cut.attrs((1, 3, 20, 30))["crop_size"] == (20, 30)


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ({"src_image_size_w": 32, "src_image_size_h": 16}, ["makes 16 pixels along H", "makes 32 pixels along W"]),
        (
            {"padding": True, "top_padding_size": 10, "bottom_padding_size": 10, "left_padding_size": 31},
            ["no pixel of the picture along H", "no pixel of the picture along W"],
        ),
        ({"crop": True, "crop_size_h": 19, "src_image_size_h": 64}, ["makes 19 pixels along H"]),
        ({"crop": True, "load_start_pos_w": 3, "src_image_size_w": 32}, ["the cut ends 33 pixels along W"]),
        (
            {"input_format": "YUV420SP_U8", "crop": True, "load_start_pos_w": 1, "src_image_size_w": 64},
            ["must be even along W"],
        ),
    ],
)
def test_sizes_that_do_not_fit(given, messages):
    block = AippOp.of(**{"aipp_mode": "static", "input_format": "RGB888_U8", **given})
    with pytest.raises(UsageError) as caught:
        block.attrs((1, 3, 20, 30))
    assert len(caught.value.problems) == len(messages)
    for problem, message in zip(caught.value.problems, messages):
        assert message in problem.message and problem.code == "E10052"


def test_blocks_from_python_are_checked_alike():
    with pytest.raises(UsageError, match="did you mean 'csc_switch'"):
        AippOp.of(aipp_mode="static", input_format="RGB888_U8", csc_swich=True)
    with pytest.raises(UsageError, match="from 0 to 255"):
        AippOp.of(aipp_mode="static", input_format="RGB888_U8", mean_chn_0=-1)
