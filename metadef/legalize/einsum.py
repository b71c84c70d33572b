"""Einsum: sums, transposes and one product of matrices, or of elements where nothing is summed over both operands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from string import ascii_letters

from metadef.graph import Tensor
from metadef.legalize.table import Step, Unmapped, rule


@rule("Einsum")
def einsum(step: Step) -> Sequence[Tensor]:
    """One or two operands, each letter once in a term; an ellipsis stands for leading axes of equal sizes."""
    terms, result = _letters(step)
    sizes = _sizes(step, terms)
    if len(terms) == 1:
        x, have = _summed(step, step[0], terms[0], result)
        return _finished(step, x, have, result)
    (a, a_term), (b, b_term) = (
        _summed(step, step[slot], terms[slot], terms[1 - slot] + result) for slot in (0, 1)
    )  # fmt: skip
    both = [letter for letter in a_term if letter in b_term]
    batch = [letter for letter in both if letter in result]
    contracted = [letter for letter in both if letter not in result]
    left, right = ([letter for letter in term if letter not in both] for term in (a_term, b_term))
    have = "".join(batch + left + right)
    if not contracted:
        a = _ordered(step, a, a_term, batch + left)
        b = _ordered(step, b, b_term, batch + right)
        b = step.reshape(b, [*(sizes[c] for c in batch), *(1 for _ in left), *(sizes[c] for c in right)])
        a = step.reshape(a, [*(sizes[c] for c in batch + left), *(1 for _ in right)])
        return _finished(step, step.op("Mul", [a, b]), have, result)
    if not step.dtype().is_float:
        raise Unmapped(f"a product of {step.dtype().label}")
    a = _ordered(step, a, a_term, batch + left + contracted)
    b = _ordered(step, b, b_term, batch + contracted + right)
    lead = [prod(sizes[c] for c in batch)] if batch else []
    m, k, n = (prod(sizes[c] for c in group) for group in (left, contracted, right))
    operands = [step.reshape(a, [*lead, m, k]), step.reshape(b, [*lead, k, n])]
    product = step.op("BatchMatMulV2" if batch else "MatMulV2", operands)
    return _finished(step, step.reshape(product, [sizes[c] for c in have]), have, result)


def _letters(step: Step) -> tuple[list[str], str]:
    """Terms of the operands and of the result, with ellipses spelled out by letters of their own."""
    equation = step.attr("equation").replace(" ", "")
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if len(terms) not in (1, 2) or len(terms) != len(step.node.inputs):
        raise Unmapped(f"an equation of {len(terms)} operands")
    spare = [letter for letter in ascii_letters if letter not in equation]
    leads = [step.rank(slot) - len(term.replace("...", "")) for slot, term in enumerate(terms) if "..." in term]
    if len(set(leads)) > 1:
        raise Unmapped("an ellipsis over different numbers of axes")
    lead = "".join(spare[: leads[0]]) if leads else ""
    terms = [term.replace("...", lead) for term in terms]
    if not arrow:
        counts = Counter("".join(terms))
        result = lead + "".join(sorted(letter for letter in counts if counts[letter] == 1 and letter not in lead))
    result = result.replace("...", lead)
    if any(len(set(term)) < len(term) for term in (*terms, result)):
        raise Unmapped("a letter twice in one term")
    return terms, result


def _sizes(step: Step, terms: Sequence[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for slot, term in enumerate(terms):
        for letter, size in zip(term, step.shape(slot), strict=True):
            if sizes.setdefault(letter, size) != size:
                raise Unmapped("an axis that is stretched")
    return sizes


def _summed(step: Step, x: Tensor, term: str, wanted: str) -> tuple[Tensor, str]:
    """The operand summed over the letters that nothing else has, and the letters left."""
    axes = tuple(axis for axis, letter in enumerate(term) if letter not in wanted)
    if not axes:
        return x, term
    kept = "".join(letter for letter in term if letter in wanted)
    return step.op("ReduceSumD", [x], {"axes": axes, "keep_dims": False}), kept


def _ordered(step: Step, x: Tensor, term: str, order: Sequence[str]) -> Tensor:
    perm = tuple(term.index(letter) for letter in order)
    return x if perm == tuple(range(len(perm))) else step.op("TransposeD", [x], {"perm": perm})


def _finished(step: Step, x: Tensor, term: str, result: str) -> Sequence[Tensor]:
    """The result in its order of axes, under the node's name."""
    perm = tuple(term.index(letter) for letter in result)
    return [x] if perm == tuple(range(len(perm))) else step.out("TransposeD", [x], {"perm": perm})
