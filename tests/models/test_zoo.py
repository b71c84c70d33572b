"""The seventeen networks hold to their limits: no host-run node, accuracy end to end and task by task, reasons given.

Models and inputs are those of tools/model_zoo.py; what is not in its cache is made from the data beside the project
where that needs no network, else the test skips and says how to make it.
"""

from __future__ import annotations

from functools import lru_cache

import pytest

pytest.importorskip("onnxruntime", reason="the limits are distances from onnxruntime")

from model_zoo import CLASSIFIERS, LIGHT, NAMES, NotMade, ZooModel, make, reference_session, zoo_model
from npusim import InferenceSession, SessionOptions
from npusim.compare import compare_layers, difference

ORIGIN_LIMIT, LAYER_LIMIT, COSINE_LIMIT = 1e-4, 1e-3, 0.999
QUICK = ("mtcnn_rnet", "ppocr_cls")
EVERY = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]


@pytest.fixture
def zoo(request: pytest.FixtureRequest, need_data) -> ZooModel:
    """The model named by the test's parameter."""
    name = request.param
    if name in LIGHT:
        need_data("conformance/make_derived.py")
        make(name)
    try:
        return zoo_model(name)
    except NotMade as reason:
        pytest.skip(str(reason))


@lru_cache(maxsize=1)
def wanted(name: str) -> list[list]:
    """onnxruntime's outputs on every input of a model."""
    model = zoo_model(name)
    session = reference_session(model)
    return [session.run(None, dict(feeds)) for feeds in model.feeds]


def compiled(model: ZooModel, precision: str) -> InferenceSession:
    return InferenceSession(str(model.path), SessionOptions(precision=precision, threads=1, shapes=model.shapes))


@pytest.mark.parametrize("zoo", EVERY, indirect=True)
def test_with_the_models_own_types(zoo: ZooModel):
    session = compiled(zoo, "origin")
    assert not session.loaded.host_tasks
    for feeds, theirs in zip(zoo.feeds, wanted(zoo.name), strict=True):
        for name, ours, reference in zip(session.program.outputs, session.run(None, feeds), theirs, strict=True):
            assert difference(ours, reference).rel_l2 <= ORIGIN_LIMIT, name.name
    session.close()


@pytest.mark.parametrize("zoo", EVERY, indirect=True)
def test_in_half_precision(zoo: ZooModel):
    session = compiled(zoo, "fp16")
    assert not session.loaded.host_tasks
    worst = compare_layers(session, zoo.feeds[0], {})[0]
    assert worst.rel_l2 <= LAYER_LIMIT, f"{worst.op_type} {worst.name}"
    for feeds, theirs in zip(zoo.feeds, wanted(zoo.name), strict=True):
        gaps = [difference(a, b) for a, b in zip(session.run(None, feeds), theirs, strict=True)]
        assert not zoo.real or all(gap.cosine >= COSINE_LIMIT for gap in gaps)
        assert zoo.name not in CLASSIFIERS or all(gap.top1_equal for gap in gaps)
    notes = session.compile_report.notes()
    silent = [
        node.name for node in session.compilation.graph.nodes if node.op_type == "TransData" and node.name not in notes
    ]
    assert not silent, "format changes without a reason"
    assert session.program.theory_min <= session.program.total_size <= session.program.no_reuse
    session.close()


@pytest.mark.parametrize("zoo", ["shufflenet"], indirect=True)
def test_on_a_coupled_chip(zoo: ZooModel):
    """Saturating, without a fixpipe: the epilogues differ, the values hardly."""
    session = InferenceSession(
        str(zoo.path), SessionOptions(soc="Ascend910A", precision="fp16", threads=1, shapes=zoo.shapes)
    )
    assert not session.loaded.host_tasks
    for ours, theirs in zip(session.run(None, zoo.feeds[0]), wanted(zoo.name)[0], strict=True):
        assert difference(ours, theirs).cosine >= COSINE_LIMIT
    session.close()
