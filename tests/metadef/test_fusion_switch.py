"""Switch files of GE, in both forms."""

from __future__ import annotations

import json

import pytest

from metadef.error import UsageError
from metadef.fusion_switch import parse_fusion_switch, read_fusion_switch
from metadef.passes import PIPELINE
from metadef.rewrite import GRAPH_FUSION, UB_FUSION


def names(group: str) -> set[str]:
    return {item.name for item in PIPELINE if item.group == group}


def test_plain_lines(tmp_path):
    path = tmp_path / "fusion_switch.cfg"
    path.write_text("ConvBatchnormFusionPass:off\n# a comment\nTbeEltwiseFusionPass : on\nOnlyGeHasThis:OFF\n\n")
    assert read_fusion_switch(path, PIPELINE) == {"ConvBatchnormFusionPass", "OnlyGeHasThis"}
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_fusion_switch(path, PIPELINE) == {"ConvBatchnormFusionPass", "OnlyGeHasThis"}


def test_json_with_all_overruled_by_single_passes():
    switch = {
        "GraphFusion": {"ConvBatchnormFusionPass": "on", "ALL": "off"},
        "UBFusion": {"TbeEltwiseFusionPass": "off"},
    }
    disabled = parse_fusion_switch(json.dumps({"Switch": switch}), PIPELINE)
    assert disabled == (names(GRAPH_FUSION) - {"ConvBatchnormFusionPass"}) | {"TbeEltwiseFusionPass"}


def test_plain_all_means_both_groups_and_the_option_wins():
    disabled = parse_fusion_switch("ALL:off", PIPELINE, "TbeEltwiseFusionPass:on;PrunePass:off")
    assert disabled == (names(GRAPH_FUSION) | names(UB_FUSION) | {"PrunePass"}) - {"TbeEltwiseFusionPass"}


def test_faults_are_told_at_once(tmp_path):
    with pytest.raises(UsageError) as caught:
        parse_fusion_switch("A:of\nB\n", PIPELINE)
    assert len(caught.value.problems) == 2
    for text in (
        '{"Switch": {"Graph": {}}}',
        '{"Switch": 3}',
        '{"GraphFusion": {}}',
        "{",
        '{"Switch": {"UBFusion": 1}}',
    ):
        with pytest.raises(UsageError, match="fusion switch file"):
            parse_fusion_switch(text, PIPELINE)
    with pytest.raises(UsageError, match="cannot read"):
        read_fusion_switch(tmp_path / "absent.cfg", PIPELINE)
