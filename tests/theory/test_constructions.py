"""Secs. 4.1 to 4.3 in the model's own layers: what the prescribed weights do, for RoPE and CRoPE
alike.

Shapes: T tokens; rows of a score or weight matrix are queries m, its columns keys n.
"""

from functools import partial

import numpy as np
import pytest
import torch

from crope.model.attention import CausalAttention
from crope.model.positions import POSITIONS
from crope.theory.constructions import (
    absolute_pointing,
    attend,
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

# A text of "next" (1), "nexnext" (2) and other tokens (0), by how far they point; the pointers whose
# targets, ahead and behind, lie inside the text; and these targets.
TEXT = np.random.default_rng(0).integers(0, 3, size=200)
ROWS = 2 + TEXT[2:-2].nonzero()[0]
AHEAD, BEHIND = ROWS + TEXT[ROWS], ROWS - TEXT[ROWS]
crope_pointing = partial(pointing, width=64, projection="complex")
BOTH = pytest.mark.parametrize("projection", ["real", "complex"])


def distances(length):
    """m - n."""
    return np.arange(length)[:, None] - np.arange(length)


def attended(made, rows):
    """The key with the highest score of each of these queries."""
    return made.scores()[rows].argmax(axis=1)


@torch.no_grad()
def test_opened_attention_is_the_models():
    """With the mask; weights are a softmax of the scores over sqrt(K) (Eqs. 1 to 3)."""
    config, x_BTD = model_config("crope"), normal(2, 9, 24)
    attention = randomise(CausalAttention(config))
    positions = POSITIONS[config.position](config, 9)
    found = attend(attention, positions, x_BTD, causal=True)
    assert_close(found.y_BTD, attention(x_BTD, positions), atol=1e-12)


def test_eq_2_needs_the_exponential_below_the_fraction_too():
    """Printed, the denominator sums attn, not exp attn: such weights do not sum to 1."""
    scores = gaussian(6, 6)
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
        errors.append(np.abs(scores - wanted).max() / wanted.max())
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
    moved = []
    for x_TD in (slow_TD, np.roll(slow_TD, channels, axis=1)):
        scores = comparison(x_TD, position="rotary", projection=projection).scores()
        moved.append(np.abs(scores - token_TC @ token_TC.T))
    turn = window * frequencies(width)[-channels // 2]
    norms = np.linalg.norm(token_TC, axis=1)
    assert turn < 0.5
    assert (moved[0] <= turn * np.outer(norms, norms)).all()
    assert moved[1].max() > 10 * moved[0].max()


def test_eq_16_holds_for_falling_frequencies_only():
    """The text sorts theta ascending and wants 1/theta_l >> w for l >= l_t: so sorted, the late
    ones are the fast.
    """
    window, late = 20, slice(16, None)
    falling = 1 / frequencies(64)
    ascending = np.sort(falling)[::-1]
    assert (falling[late] > 4 * window).all()
    assert (ascending[late] < window).sum() > 8


# Sec. 4.2: comparing positions


def test_small_embeddings_compare_positions():
    """Eqs. 19 to 21, XPOS: p_m . p_n is the rotary kernel, highest at m = n but no delta."""
    scores = comparison(1e-6 * gaussian(40, 64), position="sinusoidal").scores()
    expected = 32 * kernel(distances(40), frequencies(64))
    assert_allclose(scores, expected, atol=1e-3)


@pytest.mark.parametrize(
    ("pair", "times"),
    [
        ([1.0, 1.0], 2),  # real ones
        ([1.0, 0.0], 1),  # complex ones
    ],
)
def test_a_constant_embedding_compares_positions(pair, times):
    """Eqs. 22 and 23: real ones give *twice* the printed sum of 8 cosines."""
    scores = comparison(np.tile(pair, (30, 8)), position="rotary").scores()
    printed = 8 * kernel(distances(30), frequencies(16))
    assert_allclose(scores, times * printed, atol=1e-5)


# Sec. 4.3: pointing


@BOTH
@pytest.mark.parametrize("width", [16, 128])
def test_next_and_nexnext_with_the_conjugate_phase(width, projection):
    """Eqs. 27 to 29 with q = e^{+i theta}: each pointer's scores are the kernel around the token
    where it points, for any other tokens.
    """
    distance_MN = np.arange(200) - AHEAD[:, None]
    expected = width / 2 * kernel(distance_MN, frequencies(width))
    made = pointing(TEXT, width=width, projection=projection)
    assert_allclose(made.scores()[ROWS], expected, atol=1e-4)


def test_printed_phases_attend_to_the_tokens_before():
    """Eqs. 27 and 29 as printed, q = e^{-i theta}, under rotation by +m theta: m - 1 and m - 2."""
    made = crope_pointing(TEXT, sign=-1)
    assert (attended(made, ROWS) == BEHIND).all()


@pytest.mark.parametrize(
    ("sine", "times", "target"),
    [
        (-1, 1, -1),  # as printed, for both kinds
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
    ahead = crope_pointing(TEXT, gain=300)
    behind = crope_pointing(TEXT, gain=300, sign=-1)
    assert ahead.weights()[ROWS, AHEAD].min() > 0.999
    assert not ahead.weights(causal=True)[ROWS, AHEAD].any()
    assert behind.weights(causal=True)[ROWS, BEHIND].min() > 0.999


def test_the_sums_are_no_delta_but_softmax_sharpens_them():
    """Eq. 28: next to its target the score keeps 0.9 of its peak; the missed weight falls as the
    gain grows.
    """
    missed = []
    for gain in (1.0, 900.0):
        made = crope_pointing([1] * 48, gain=gain)
        on_target = np.diagonal(made.weights(), 1)
        missed.append(1 - on_target.mean())
    scores = made.scores()
    assert (np.diagonal(scores, 2) > 0.9 * np.diagonal(scores, 1)[1:]).all()
    assert missed[0] > 0.8
    assert missed[1] < 1e-4


def test_the_free_numbers_must_sum_to_one_positive_value():
    """Below Eq. 29: equal sums are not enough; a negative one turns the peak into a trough."""
    made = crope_pointing([1] * 30)
    made.x_TD[:] *= -1
    set_map(made.attention.k_proj, -np.ones((32, 32)))  # the keys stay 1
    rows = np.arange(28)
    assert (made.scores()[rows].argmin(axis=1) == rows + 1).all()


# Sec. 4.3: absolute positions


def test_absolute_sinusoids_can_point_within_a_window():
    """Sec. 4.3 (Eqs. 24 to 26) calls it impossible for one layer: over 200 positions it is not."""
    weights = absolute_pointing(TEXT, width=64, gain=10_000).weights()
    assert weights[ROWS, AHEAD].min() > 0.999


def test_absolute_sinusoids_cannot_point_at_every_position():
    """The two kinds' scores at (m, n) differ by g(n) alone, which must fall at every step: over N
    positions the margin is at most range(g) / N.
    """
    following = absolute_pointing([1] * 200, width=64).scores()
    second = absolute_pointing([2] * 200, width=64).scores()
    g_MN = following - second
    g_N = g_MN[0]
    assert_allclose(g_MN - g_N, 0, atol=1e-6)
    margin = (g_N[1:-1] - g_N[2:]).min() / 2  # the mean of the two kinds
    assert margin > 0
    assert margin <= np.ptp(g_N) / (2 * 198) + 1e-6


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
        made = crope_pointing([kind] * 64, width=16)
        weights.extend(np.diagonal(made.weights(), kind))
    found = construction_results(width=16)
    missed = pytest.approx(1 - np.mean(weights), abs=1e-6)
    assert found["missed_by_width"][0] == missed
    assert found["missed_by_gain"][0] == missed
    offsets = [0, 1, 0, 2, 0, 1, 2, 0, 0, 2, 1, 0]
    rotary = crope_pointing(offsets, width=16, gain=300)
    absolute = absolute_pointing(offsets, width=16, gain=30_000)
    assert_allclose(found["attention"]["rotary"], rotary.weights(), atol=1e-12)
    assert_allclose(found["attention"]["absolute"], absolute.weights(), atol=1e-12)
