"""What the papers print that does not hold, what holds instead, and the test that shows it.

Judged on the text extractions that this project was built from, which lose a sign here and there; an entry says so
where the slip may be the extraction's. Imports nothing: the report reads this table too.
"""

from __future__ import annotations

from dataclasses import dataclass

CROPE, ROFORMER, ARTICLE, SLIDES = "CRoPE", "RoFormer", "article", "slides"

_CONSTRUCTIONS = "tests/theory/test_constructions.py::"
_FORM = "tests/theory/test_complex_form.py::"
_KERNEL = "tests/theory/test_kernel.py::"
_ROFORMER = "tests/theory/test_roformer.py::"
_COMPANIONS = "tests/theory/test_companions.py::"


@dataclass(frozen=True)
class Erratum:
    """One slip: where, what is printed, what holds, and the pytest node that shows both."""

    document: str
    equation: str
    printed: str
    holds: str
    test: str


ERRATA = (
    Erratum(
        CROPE,
        "2",
        "denominator: sum over j of attn(m, j)",
        "sum over j of exp attn(m, j); attention also divides scores by sqrt(head width)",
        _CONSTRUCTIONS + "test_eq_2_needs_the_exponential_below_the_fraction_too",
    ),
    Erratum(
        CROPE,
        "11",
        "q.k = Re[q^T k] in complex form",
        "Re[conj(q)^T k]",
        _FORM + "test_inner_product_needs_the_conjugate",
    ),
    Erratum(
        CROPE,
        "12",
        "Re[q^T conj(R) k], “exactly equivalent to Eq. 7”",
        "equivalent with conj(q)",
        _FORM + "test_rotary_score_is_the_models_and_depends_on_the_distance",
    ),
    Erratum(
        CROPE,
        "13",
        "Re[x_m^T W_q^† conj(R) W_k x_n]",
        "conj(x_m) in place of x_m",
        _FORM + "test_complex_maps_give_cropes_score",
    ),
    Erratum(
        CROPE,
        "16",
        "theta in ascending order, 1/theta_l >> w for l >= l_t; channels counted by the l of the pairs",
        "theta in descending order, as RoFormer's; pair l is channels 2l - 1 and 2l",
        _CONSTRUCTIONS + "test_eq_16_holds_for_falling_frequencies_only",
    ),
    Erratum(
        CROPE,
        "21, 23",
        "p_m.p_n and sum of cos[(m-n) theta_i] tend to delta(m-n) for D to infinity",
        "they tend to (Ci(d) - Ci(d/10000)) / ln 10000 of the peak at distance d: 0.974 at 1, 0.437 at 100; evenly "
        "spaced frequencies would give a delta, and a softmax over scores that grow with D or by a gain does",
        _KERNEL + "test_the_kernel_is_no_delta_at_any_width",
    ),
    Erratum(
        CROPE,
        "23",
        "x = 1 gives the sum of cos[(m-n) theta_i]",
        "real ones are 1 + i in every pair and give twice the sum; 1 + 0i gives it",
        _CONSTRUCTIONS + "test_a_constant_embedding_compares_positions",
    ),
    Erratum(
        CROPE,
        "24-26",
        "token-dependent offsets are impossible for one layer with absolute positions",
        "impossible for all positions at once; over a finite window one layer does it, with a margin that falls as "
        "one over the window",
        _CONSTRUCTIONS + "test_absolute_sinusoids_can_point_within_a_window",
    ),
    Erratum(
        CROPE,
        "24",
        "the task's relative position “is already hard for absolute positional embedding”",
        "a fixed offset is a turn of the query's sinusoids: it points at i + 1 for every i; the token's choice is hard",
        _CONSTRUCTIONS + "test_position_part_of_absolute_queries_points_at_a_fixed_offset",
    ),
    Erratum(
        CROPE,
        "27, 29",
        "q = e^{-i theta} and e^{-2i theta} attend to m + 1 and m + 2",
        "under rotation by +m theta (Eq. 6) they attend to m - 1 and m - 2; e^{+i theta} and e^{+2i theta} attend to "
        "m + 1 and m + 2. The printed pair is consistent with Eq. 12's missing conjugate only",
        _CONSTRUCTIONS + "test_printed_phases_attend_to_the_tokens_before",
    ),
    Erratum(
        CROPE,
        "below 28",
        "real queries (cos, -sin) for “next” and (cos, sin) for “nexnext”",
        "these attend to m - 1 and m + 1; (cos k theta, sin k theta) attends to m + k (signs as in our extraction)",
        _CONSTRUCTIONS + "test_printed_real_queries_attend_elsewhere",
    ),
    Erratum(
        CROPE,
        "28",
        "scores tend to delta(m+1-n) for D to infinity",
        "next to the target the score stays within 3 % of its peak at large D; the softmax weight on the target tends "
        "to 1 as the gain of the queries grows",
        _CONSTRUCTIONS + "test_the_sums_are_no_delta_but_softmax_sharpens_them",
    ),
    Erratum(
        CROPE,
        "29",
        "sufficient: the a_t of both kinds have the same sum",
        "the sum must be positive as well, and the key map must give every token the key 1",
        _CONSTRUCTIONS + "test_the_free_numbers_must_sum_to_one_positive_value",
    ),
    Erratum(
        CROPE,
        "30 (Sec. 5.1)",
        "CRoPE halves the output dimensions of Q, K, V and the input dimension of the output projection",
        "Eq. 30 keeps all dimensions and gives the 37.5 % and 12.5 % of Sec. 6.1; the sentence gives 50 % and 16.7 %",
        "tests/theory/test_equations.py::test_the_halved_reading_contradicts_the_papers_shares",
    ),
    Erratum(
        ROFORMER,
        "16",
        "x^T W_q R_{n-m} W_k x_n",
        "x_m^T W_q^T R_{n-m} W_k x_n (perhaps the extraction's slip)",
        _ROFORMER + "test_relative_score_needs_the_transpose_of_w_q",
    ),
    Erratum(
        ROFORMER,
        "31",
        "q e^{i theta_q + m theta + gamma}",
        "q e^{i (theta_q + m theta + gamma)} (perhaps the extraction's slip)",
        _ROFORMER + "test_the_derivation_in_the_plane",
    ),
    Erratum(
        ROFORMER,
        "37 (Sec. 3.4.3)",
        "the inner product decays with the relative distance",
        "an upper bound on it does, as a trend and not at every step; the score itself can peak at any distance",
        _KERNEL + "test_the_bound_decays_but_not_at_every_step_nor_does_the_score",
    ),
    Erratum(
        ARTICLE,
        "inv_freq",
        "omega_i = 10000^(-i/d), so 1.0 and 0.1 at d = 4",
        "10000^(-2i/d), so 1.0 and 0.01; the article's numbers are those of base 100",
        _COMPANIONS + "test_the_articles_own_numbers_come_from_base_100",
    ),
    Erratum(
        SLIDES,
        "below 1",
        "sinusoids sin(k / 10000 * 2t / d)",
        "sin(k / 10000^(2t/d))",
        _COMPANIONS + "test_the_slides_sinusoids_lack_the_exponent",
    ),
)
