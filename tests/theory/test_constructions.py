"""Secs. 4.1 to 4.3 in the model's own layers: what the prescribed weights do, for RoPE and CRoPE
alike.
"""

import numpy as np
import pytest
import torch

from crope.model.attention import CausalAttention
from crope.model.positions import build_positions
from crope.theory.constructions import (
    GAIN,
    WINDOW,
    absolute_pointing,
    attend,
    attention_scores,
    attention_weights,
    comparison,
    construction_results,
    on_slow_pairs,
    pointing,
    set_map,
)
from crope.theory.pointer_task import EXAMPLE
from crope.theory.rotary import frequencies, kernel
from tests.model.oracles import (
    assert_allclose,
    assert_close,
    gaussian,
    model_config,
    normal,
    randomise,
)

BOTH = pytest.mark.parametrize("projection", ["real", "complex"])


def offsets(length: int, seed: int = 0) -> np.ndarray:
    """A text of "next" (1), "nexnext" (2) and other tokens (0)."""
    return np.random.default_rng(seed).integers(0, 3, size=length)


def asking(text: np.ndarray) -> np.ndarray:
    """Positions of pointers whose targets on either side lie inside the text."""
    rows = np.arange(2, len(text) - 2)
    return rows[text[rows] > 0]


@pytest.mark.parametrize("model", ["xpos", "rope", "crope"])
def test_opened_attention_is_the_models(model: str) -> None:
    """`attend` with the mask gives the layer's forward pass; weights are a softmax of the scores
    over sqrt(K).
    """
    config, x_BTD = model_config(model), normal(2, 9, 24)
    attention, positions = randomise(CausalAttention(config)), build_positions(config, max_len=9)
    with torch.no_grad():
        found = attend(attention, positions, x_BTD, causal=True)
        assert_close(found, attention(x_BTD, positions), atol=1e-12)
        score = attention_scores(attention, positions, x_BTD)[1, 1, 4].numpy() / np.sqrt(6)
        weight = attention_weights(attention, positions, x_BTD, causal=False)[1, 1, 4].numpy()
    np.testing.assert_allclose(weight, np.exp(score) / np.exp(score).sum(), rtol=1e-12)


def test_eq_2_needs_the_exponential_below_the_fraction_too() -> None:
    """Printed, the denominator sums attn, not exp attn: such weights are neither positive nor a
    mean.
    """
    scores = comparison(gaussian(6, 8), position="rotary").scores()
    printed = np.exp(scores) / scores.sum(1, keepdims=True)
    assert np.abs(printed.sum(1) - 1).min() > 0.1


def test_large_embeddings_compare_tokens() -> None:
    """Eqs. 14 and 15, XPOS: the positions' part of the score falls as 1 / scale, as x.p / x.x does."""
    errors = []
    for scale in (10, 100, 1000):
        x_TD = scale * gaussian(20, 32)
        wanted = x_TD @ x_TD.T
        scores = comparison(x_TD, position="sinusoidal").scores()
        errors.append(np.abs(scores - wanted).max() / np.abs(wanted).max())
    assert errors[1] / errors[2] == pytest.approx(10, rel=0.05)
    assert errors[0] > errors[1] and errors[2] < 0.003


def test_small_embeddings_compare_positions() -> None:
    """Eqs. 19 and 20, XPOS: p_m . p_n, which for sinusoids is the rotary kernel and no delta (Eq.
    21).
    """
    length, width = 40, 64
    scores = comparison(1e-6 * gaussian(length, width), position="sinusoidal").scores()
    distance = np.arange(length)[:, None] - np.arange(length)
    assert_allclose(scores, width / 2 * kernel(distance, frequencies(width)), atol=1e-3)
    assert (scores.argmax(1) == np.arange(length)).all()
    assert (np.diagonal(scores, 1) > 0.96 * scores.max()).all()


@BOTH
def test_slow_pairs_compare_tokens(projection: str) -> None:
    """Eqs. 16 to 18: a turn by at most w theta moves a score by at most w theta |x_m| |x_n|, theta
    the fastest used.
    """
    window, width, channels = 50, 64, 16
    token_TC = gaussian(window, channels)
    slow_TD = on_slow_pairs(token_TC, width)
    fast_TD = np.roll(slow_TD, channels, axis=1)  # on the fastest pairs: what Eq. 16 avoids
    errors = []
    for x_TD in (slow_TD, fast_TD):
        scores = comparison(x_TD, position="rotary", projection=projection).scores()
        errors.append(np.abs(scores - token_TC @ token_TC.T))
    norms = np.linalg.norm(token_TC, axis=1)
    fastest = frequencies(width)[-channels // 2]
    assert window * fastest < 0.5
    assert (errors[0] <= window * fastest * np.outer(norms, norms)).all()
    assert np.diagonal(errors[0]).max() < 1e-5  # at distance 0 nothing turns
    assert errors[1].max() > 10 * errors[0].max()


def test_eq_16_holds_for_falling_frequencies_only() -> None:
    """The text sorts theta ascending and wants 1/theta_l >> w for l >= l_t: so sorted, the late
    ones are the fast.
    """
    ascending = np.sort(frequencies(64))
    window, half = 20, 16
    assert (1 / ascending[half:] < window).sum() > half // 2 and (
        1 / ascending[:half] > 4 * window
    ).all()
    assert (1 / frequencies(64)[half:] > 4 * window).all()  # RoFormer's order


@BOTH
def test_a_constant_embedding_compares_positions(projection: str) -> None:
    """Eqs. 22 and 23: real ones give *twice* the printed sum; complex ones, (1, 0) in each pair,
    give it.
    """
    length, width = 30, 16
    distance = np.arange(length)[:, None] - np.arange(length)
    printed = width / 2 * kernel(distance, frequencies(width))
    ones = comparison(np.ones((length, width)), position="rotary", projection=projection).scores()
    assert_allclose(ones, 2 * printed, atol=1e-5)
    complex_ones = np.tile([1.0, 0.0], (length, width // 2))
    found = comparison(complex_ones, position="rotary", projection=projection).scores()
    assert_allclose(found, printed, atol=1e-5)


@BOTH
@pytest.mark.parametrize("width", [16, 64, 128])
def test_next_and_nexnext_with_the_conjugate_phase(width: int, projection: str) -> None:
    """Eqs. 27 to 29 with q = e^{+i theta}: each pointer's highest score is where it points, for any
    other tokens.
    """
    text = offsets(60)
    scores, rows = pointing(text, width=width, projection=projection).scores(), asking(text)
    assert (scores[rows].argmax(1) == rows + text[rows]).all()
    expected = (
        width / 2 * kernel(np.arange(60) - rows[:, None] - text[rows, None], frequencies(width))
    )
    assert_allclose(scores[rows], expected, atol=1e-4)


@BOTH
def test_printed_phases_attend_to_the_tokens_before(projection: str) -> None:
    """Eqs. 27 and 29 as printed, q = e^{-i theta}, under rotation by +m theta: m - 1 and m - 2."""
    text = offsets(60)
    scores, rows = pointing(text, width=64, projection=projection, sign=-1).scores(), asking(text)
    assert (scores[rows].argmax(1) == rows - text[rows]).all()


def test_printed_real_queries_attend_elsewhere() -> None:
    """Below Eq. 28: (cos, -sin), printed for "next" and "nexnext" alike, attends to m - 1;
    (cos k theta, sin k theta) attends to m + k.
    """
    theta, rows = frequencies(64), np.arange(1, 38)
    for sine, times, target in ((-1, 1, -1), (1, 1, 1), (1, 2, 2)):
        made = comparison(np.tile([1.0, 0.0], (40, 32)), position="rotary")
        q_C = np.cos(times * theta) + 1j * sine * np.sin(times * theta)
        set_map(made.attention.q_proj, np.diag(q_C))
        assert (made.scores()[rows].argmax(1) == rows + target).all()


def test_a_target_ahead_needs_attention_without_a_mask() -> None:
    text = offsets(40)
    made, rows = pointing(text, width=64, projection="complex", gain=300), asking(text)
    assert made.weights()[rows, rows + text[rows]].min() > 0.999
    assert (made.weights(causal=True)[rows, rows + text[rows]] == 0).all()
    behind = pointing(text, width=64, projection="complex", gain=300, sign=-1)
    assert behind.weights(causal=True)[rows, rows - text[rows]].min() > 0.999


@pytest.mark.parametrize("width", [16, 64, 128])
def test_the_sums_are_no_delta_but_softmax_sharpens_them(width: int) -> None:
    """Eq. 28: next to its target the score keeps 0.9 or more of its peak; the weight there falls as
    the gain grows.
    """
    missed = []
    for gain in (1.0, 30.0, 900.0):
        made = pointing([1] * 48, width=width, projection="complex", gain=gain)
        target, beyond = (np.diagonal(made.scores(), offset) for offset in (1, 2))
        assert (beyond > 0.9 * target[:-1]).all()
        missed.append(1 - np.diagonal(made.weights(), 1).mean())
    assert missed[0] > 0.8 and missed[2] < 1e-4


def test_the_free_numbers_must_sum_to_one_positive_value() -> None:
    """Below Eq. 29: equal sums are not enough; a negative one turns the peak into a trough."""
    text = np.ones(30, dtype=int)
    made = pointing(text, width=64, projection="complex")
    made.x_TD[:] *= -1
    set_map(made.attention.k_proj, -np.ones((32, 32)))  # the keys stay 1
    rows = np.arange(28)
    assert (made.scores()[rows].argmin(1) == rows + 1).all()


def test_absolute_sinusoids_can_point_within_a_window() -> None:
    """Sec. 4.3 (Eqs. 24 to 26) calls it impossible for one layer: over 200 positions it is not.

    The margin is small.
    """
    text = offsets(200)
    made, rows = absolute_pointing(text, width=64, gain=10_000), asking(text)
    assert (made.scores()[rows].argmax(1) == rows + text[rows]).all()
    assert made.weights()[rows, rows + text[rows]].min() > 0.999
    # Where a pointer of the other kind would look.
    other = made.scores()[rows, rows + 3 - text[rows]]
    margin = (made.scores()[rows, rows + text[rows]] - other) / 10_000
    np.testing.assert_allclose(margin, 0.02, rtol=0.05)


def test_absolute_sinusoids_cannot_point_at_every_position() -> None:
    """The two kinds' scores at (i, j) differ by g(j) alone, which must fall at every step: margin
    <= range(g) / N.
    """
    length, width = 200, 64
    scores = [absolute_pointing([kind] * length, width=width).scores() for kind in (1, 2)]
    g_TT = scores[0] - scores[1]
    # The query's position drops out.
    assert_allclose(g_TT - g_TT[0], 0, atol=1e-6)
    rows = np.arange(length - 2)
    smallest = min(
        (scores[k - 1][rows, rows + k] - scores[k - 1][rows, rows + 3 - k]).min() for k in (1, 2)
    )
    assert 0 < smallest <= np.ptp(g_TT[0]) / (2 * (length - 2)) + 1e-6
    # The lean of this construction ends too.
    slow = frequencies(width)[-1]
    assert np.diff(np.sin(slow * np.arange(30_000))).min() < 0


def test_position_part_of_absolute_queries_points_at_a_fixed_offset() -> None:
    """Sec. 4.3 says that not even a fixed relative position can be had for all i; a turned sinusoid
    is one.
    """
    length, width = 60, 32
    made = comparison(np.zeros((length, width)), position="sinusoidal")
    turn = np.exp(-1j * frequencies(width))  # a pair is (sin, cos)
    set_map(made.attention.q_proj, np.diag(turn))
    rows = np.arange(length - 1)
    assert (made.scores()[rows].argmax(1) == rows + 1).all()


def test_printed_missed_weights_and_panels_are_those_of_the_constructions() -> None:
    def missed(width: int, gain: float) -> float:
        parts = []
        for kind in (1, 2):
            made = pointing([kind] * WINDOW, width=width, projection="complex", gain=gain)
            parts.append(np.diagonal(made.weights(), kind))
        return 1 - np.concatenate(parts).mean()

    found = construction_results(EXAMPLE, width=64)
    assert found["missed_by_width"][0] == pytest.approx(missed(16, 1.0), abs=1e-6)
    assert found["missed_by_gain"] == pytest.approx([missed(64, 1.0), missed(64, GAIN)], abs=1e-6)
    rows = [m for m, token in enumerate(EXAMPLE) if token < 2 and m + token + 1 < len(EXAMPLE)]
    for weights in found["attention"].values():
        assert np.argmax(np.array(weights)[rows], 1).tolist() == [m + EXAMPLE[m] + 1 for m in rows]
