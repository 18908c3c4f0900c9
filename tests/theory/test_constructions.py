"""Secs. 4.1 to 4.3 in the model's own layers: what the prescribed weights do, for RoPE and CRoPE
alike.

Shapes: T tokens; rows of a score or weight matrix are queries m, its columns keys n.
"""

import numpy as np
import pytest
import torch

from crope.model.attention import CausalAttention
from crope.model.positions import build_positions
from crope.theory.constructions import (
    Construction,
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


def distances(length: int) -> np.ndarray:
    """m - n."""
    return np.arange(length)[:, None] - np.arange(length)


def attended(made: Construction, rows: np.ndarray) -> np.ndarray:
    """The key with the highest score of each of these queries."""
    return made.scores()[rows].argmax(axis=1)


def text_of_pointers(length: int) -> tuple[np.ndarray, np.ndarray]:
    """A text of "next" (1), "nexnext" (2) and other tokens (0), by how far they point; and the
    positions of pointers whose targets, ahead and behind, lie inside the text.
    """
    text = np.random.default_rng(0).integers(0, 3, size=length)
    rows = np.arange(2, length - 2)
    return text, rows[text[rows] > 0]


@pytest.mark.parametrize("model", ["xpos", "rope", "crope"])
@torch.no_grad()
def test_opened_attention_is_the_models(model):
    """With the mask; weights are a softmax of the scores over sqrt(K) (Eqs. 1 to 3)."""
    config, x_BTD = model_config(model), normal(2, 9, 24)
    attention = randomise(CausalAttention(config))
    positions = build_positions(config, max_len=9)
    found = attend(attention, positions, x_BTD, causal=True)
    assert_close(found, attention(x_BTD, positions), atol=1e-12)
    one_row = (1, 1, 4)  # of the second sequence, the second head
    score_N = attention_scores(attention, positions, x_BTD)[one_row].numpy()
    weight_N = attention_weights(attention, positions, x_BTD, causal=False)[one_row]
    exponential_N = np.exp(score_N / np.sqrt(6))
    expected = exponential_N / exponential_N.sum()
    np.testing.assert_allclose(weight_N, expected, rtol=1e-12)


def test_eq_2_needs_the_exponential_below_the_fraction_too():
    """Printed, the denominator sums attn, not exp attn: such weights do not sum to 1."""
    scores = comparison(gaussian(6, 8), position="rotary").scores()
    printed = np.exp(scores) / scores.sum(axis=1, keepdims=True)
    assert np.abs(printed.sum(axis=1) - 1).min() > 0.1


# Sec. 4.1: comparing tokens


def test_large_embeddings_compare_tokens():
    """Eqs. 14 and 15, XPOS: the positions' part of the score falls as 1 / scale."""
    errors = []
    for scale in (100, 1000):
        x_TD = scale * gaussian(20, 32)
        wanted = x_TD @ x_TD.T
        scores = comparison(x_TD, position="sinusoidal").scores()
        worst = np.abs(scores - wanted).max()
        errors.append(worst / np.abs(wanted).max())
    assert errors[0] / errors[1] == pytest.approx(10, rel=0.05)
    assert errors[1] < 0.003


@BOTH
def test_slow_pairs_compare_tokens(projection):
    """Eqs. 16 to 18: a turn by at most w theta moves a score by at most w theta |x_m| |x_n|, theta
    the fastest used. On the fastest pairs, which Eq. 16 avoids, it moves far.
    """
    window, width, channels = 50, 64, 16
    token_TC = gaussian(window, channels)
    slow_TD = on_slow_pairs(token_TC, width)
    fast_TD = np.roll(slow_TD, channels, axis=1)
    wanted = token_TC @ token_TC.T
    slow = comparison(slow_TD, position="rotary", projection=projection).scores()
    fast = comparison(fast_TD, position="rotary", projection=projection).scores()
    turn = window * frequencies(width)[-channels // 2]
    norms = np.linalg.norm(token_TC, axis=1)
    moved = np.abs(slow - wanted)
    assert turn < 0.5
    assert (moved <= turn * np.outer(norms, norms)).all()
    assert np.abs(fast - wanted).max() > 10 * moved.max()


def test_eq_16_holds_for_falling_frequencies_only():
    """The text sorts theta ascending and wants 1/theta_l >> w for l >= l_t: so sorted, the late
    ones are the fast.
    """
    window, late = 20, slice(16, None)
    falling = 1 / frequencies(64)
    ascending = 1 / np.sort(frequencies(64))
    assert (falling[late] > 4 * window).all()
    assert (ascending[late] < window).sum() > 8


# Sec. 4.2: comparing positions


def test_small_embeddings_compare_positions():
    """Eqs. 19 to 21, XPOS: p_m . p_n is the rotary kernel, highest at m = n but no delta."""
    length, width = 40, 64
    x_TD = 1e-6 * gaussian(length, width)
    made = comparison(x_TD, position="sinusoidal")
    scores = made.scores()
    expected = 32 * kernel(distances(length), frequencies(width))
    assert_allclose(scores, expected, atol=1e-3)
    rows = np.arange(length)
    assert (attended(made, rows) == rows).all()
    neighbours = np.diagonal(scores, 1)
    assert neighbours.min() > 0.96 * scores.max()


@BOTH
@pytest.mark.parametrize(
    ("pair", "times"),
    [
        ([1.0, 1.0], 2),  # real ones
        ([1.0, 0.0], 1),  # complex ones
    ],
)
def test_a_constant_embedding_compares_positions(pair, times, projection):
    """Eqs. 22 and 23: real ones give *twice* the printed sum of 8 cosines."""
    length, width = 30, 16
    x_TD = np.tile(pair, (length, width // 2))
    scores = comparison(x_TD, position="rotary", projection=projection).scores()
    printed = 8 * kernel(distances(length), frequencies(width))
    assert_allclose(scores, times * printed, atol=1e-5)


# Sec. 4.3: pointing


@BOTH
@pytest.mark.parametrize("width", [16, 64, 128])
def test_next_and_nexnext_with_the_conjugate_phase(width, projection):
    """Eqs. 27 to 29 with q = e^{+i theta}: each pointer's highest score is where it points, for any
    other tokens.
    """
    text, rows = text_of_pointers(60)
    target_M = rows + text[rows]
    made = pointing(text, width=width, projection=projection)
    assert (attended(made, rows) == target_M).all()
    distance_MN = np.arange(60) - target_M[:, None]
    expected = width / 2 * kernel(distance_MN, frequencies(width))
    assert_allclose(made.scores()[rows], expected, atol=1e-4)


@BOTH
def test_printed_phases_attend_to_the_tokens_before(projection):
    """Eqs. 27 and 29 as printed, q = e^{-i theta}, under rotation by +m theta: m - 1 and m - 2."""
    text, rows = text_of_pointers(60)
    made = pointing(text, width=64, projection=projection, sign=-1)
    assert (attended(made, rows) == rows - text[rows]).all()


@pytest.mark.parametrize(
    ("sine", "times", "target"),
    [
        (-1, 1, -1),  # as printed, for both kinds
        (1, 1, 1),
        (1, 2, 2),
    ],
)
def test_printed_real_queries_attend_elsewhere(sine, times, target):
    """Below Eq. 28: (cos, -sin) attends to m - 1; (cos k theta, sin k theta) attends to m + k."""
    angle_C = times * frequencies(64)
    q_C = np.cos(angle_C) + 1j * sine * np.sin(angle_C)
    made = comparison(np.tile([1.0, 0.0], (40, 32)), position="rotary")
    set_map(made.attention.q_proj, np.diag(q_C))
    rows = np.arange(1, 38)
    assert (attended(made, rows) == rows + target).all()


def test_a_target_ahead_needs_attention_without_a_mask():
    """A mask hides targets ahead, and leaves those behind."""
    text, rows = text_of_pointers(40)
    ahead = pointing(text, width=64, projection="complex", gain=300)
    behind = pointing(text, width=64, projection="complex", gain=300, sign=-1)
    next_M = rows + text[rows]
    before_M = rows - text[rows]
    assert ahead.weights()[rows, next_M].min() > 0.999
    assert not ahead.weights(causal=True)[rows, next_M].any()
    assert behind.weights(causal=True)[rows, before_M].min() > 0.999


def test_the_sums_are_no_delta_but_softmax_sharpens_them():
    """Eq. 28: next to its target the score keeps 0.9 of its peak; the missed weight falls as the
    gain grows.
    """
    missed = []
    for gain in (1.0, 900.0):
        made = pointing([1] * 48, width=64, projection="complex", gain=gain)
        scores = made.scores()
        at_target = np.diagonal(scores, 1)
        beyond = np.diagonal(scores, 2)
        assert (beyond > 0.9 * at_target[:-1]).all()
        on_target = np.diagonal(made.weights(), 1)
        missed.append(1 - on_target.mean())
    assert missed[0] > 0.8
    assert missed[1] < 1e-4


def test_the_free_numbers_must_sum_to_one_positive_value():
    """Below Eq. 29: equal sums are not enough; a negative one turns the peak into a trough."""
    made = pointing([1] * 30, width=64, projection="complex")
    made.x_TD[:] *= -1
    set_map(made.attention.k_proj, -np.ones((32, 32)))  # the keys stay 1
    rows = np.arange(28)
    assert (made.scores()[rows].argmin(axis=1) == rows + 1).all()


# Sec. 4.3: absolute positions


def test_absolute_sinusoids_can_point_within_a_window():
    """Sec. 4.3 (Eqs. 24 to 26) calls it impossible for one layer: over 200 positions it is not."""
    text, rows = text_of_pointers(200)
    weights = absolute_pointing(text, width=64, gain=10_000).weights()
    assert weights[rows, rows + text[rows]].min() > 0.999


def test_absolute_sinusoids_cannot_point_at_every_position():
    """The two kinds' scores at (m, n) differ by g(n) alone, which must fall at every step: over N
    positions the margin is at most range(g) / N.
    """
    length = 200
    following = absolute_pointing([1] * length, width=64).scores()
    second = absolute_pointing([2] * length, width=64).scores()
    g_MN = following - second
    assert_allclose(g_MN - g_MN[0], 0, atol=1e-6)
    g_N = g_MN[0]
    margin = (g_N[1:-1] - g_N[2:]).min() / 2  # the mean of the two kinds
    assert margin > 0
    assert margin <= np.ptp(g_N) / (2 * (length - 2)) + 1e-6


def test_position_part_of_absolute_queries_points_at_a_fixed_offset():
    """Sec. 4.3 says that not even a fixed relative position can be had for all i; a turned sinusoid
    is one.
    """
    made = comparison(np.zeros((60, 32)), position="sinusoidal")
    turn = np.exp(-1j * frequencies(32))  # a pair is (sin, cos): minus is forwards
    set_map(made.attention.q_proj, np.diag(turn))
    rows = np.arange(59)
    assert (attended(made, rows) == rows + 1).all()


# The numbers of theory.md


def test_printed_missed_weights_and_panels_are_those_of_the_constructions():
    """Of the 63 targets of "next" and the 62 of "nexnext" in a window of 64."""
    weights = []
    for kind in (1, 2):
        made = pointing([kind] * 64, width=16, projection="complex")
        weights.extend(np.diagonal(made.weights(), kind))
    found = construction_results((0, 1, 2), width=16)
    missed = pytest.approx(1 - np.mean(weights), abs=1e-6)
    assert found["missed_by_width"][0] == missed
    assert found["missed_by_gain"][0] == missed
    panels = {
        "rotary": pointing([1, 2, 0], width=16, projection="complex", gain=300),
        "absolute": absolute_pointing([1, 2, 0], width=16, gain=30_000),
    }
    for name, made in panels.items():
        assert_allclose(found["attention"][name], made.weights(), atol=1e-12)
