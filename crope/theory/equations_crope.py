"""Eqs. 1 to 30 of the CRoPE paper: rows of equations.py."""

from __future__ import annotations

from crope.theory.equation import Equation, equation

CROPE_EQUATIONS: tuple[Equation, ...] = (
    equation(
        "1",
        "attention is a function of both embeddings and positions",
        code="theory.attention:attention_scores",
        tests="constructions::test_opened_attention_is_the_models",
    ),
    equation(
        "2",
        "softmax over scores",
        code="theory.attention:attention_weights",
        tests=(
            "constructions::test_opened_attention_is_the_models "
            "constructions::test_eq_2_needs_the_exponential_below_the_fraction_too"
        ),
    ),
    equation(
        "3",
        "output is the weighted mean of values",
        code="theory.attention:attend model.attention:CausalAttention",
        tests="model/attention::test_against_written_out_softmax",
    ),
    equation(
        "4",
        "absolute positions are added to embeddings",
        code="model.positions:SinusoidalPositions",
        tests="model/positions::test_sinusoids_are_vaswanis",
    ),
    equation(
        "5",
        "one form of relative positions: added to both embeddings",
        reason="background; none of the paper's models uses it",
    ),
    equation(
        "6",
        "block-diagonal rotation R_m",
        code="model.positions:RotaryEmbedding theory.roformer:rotary_matrix",
        tests=("model/positions::test_rotary_against_slow_references roformer::test_the_cheap_rotation_is_the_matrix"),
    ),
    equation(
        "7",
        "rotary scores depend on m - n",
        code="model.positions:RotaryEmbedding theory.attention:attention_scores",
        tests=(
            "model/positions::test_scores_depend_on_the_distance_only "
            "roformer::test_rotations_compose_and_are_orthogonal"
        ),
    ),
    equation(
        "8",
        "queries as complex numbers, interleaved pairs",
        code="theory.complex_form:as_complex",
        tests="complex_form::test_pairs_are_interleaved_and_the_cast_is_lossless",
    ),
    equation(
        "9",
        "keys as complex numbers",
        code="theory.complex_form:as_complex",
        tests="complex_form::test_pairs_are_interleaved_and_the_cast_is_lossless",
    ),
    equation(
        "10",
        "rotation as a diagonal of phases",
        code="theory.complex_form:phases",
        tests="complex_form::test_rotation_is_a_diagonal_of_phases",
    ),
    equation(
        "11",
        "inner product in complex form",
        code="theory.complex_form:inner_product",
        tests="complex_form::test_inner_product_needs_the_conjugate",
    ),
    equation(
        "12",
        "rotary score in complex form",
        code="theory.complex_form:rotary_score",
        tests="complex_form::test_rotary_score_is_the_models_and_depends_on_the_distance",
    ),
    equation(
        "13",
        "score with complex maps",
        code="theory.complex_form:complex_map_score",
        tests=("complex_form::test_complex_maps_give_cropes_score complex_form::test_a_real_map_is_no_complex_map"),
    ),
    equation(
        "14",
        "token comparison, absolute positions",
        code="theory.constructions:comparison",
        tests="constructions::test_large_embeddings_compare_tokens",
    ),
    equation(
        "15",
        "its limit for large embeddings",
        code="theory.constructions:comparison",
        tests="constructions::test_large_embeddings_compare_tokens",
    ),
    equation(
        "16",
        "embeddings on slow pairs only",
        code="theory.constructions:on_slow_pairs",
        tests=(
            "constructions::test_slow_pairs_compare_tokens constructions::test_eq_16_holds_for_falling_frequencies_only"
        ),
    ),
    equation(
        "17",
        "token comparison, rotary positions",
        code="theory.constructions:comparison",
        tests="constructions::test_slow_pairs_compare_tokens",
    ),
    equation(
        "18",
        "its limit for slow pairs",
        code="theory.constructions:comparison theory.constructions:on_slow_pairs",
        tests="constructions::test_slow_pairs_compare_tokens",
    ),
    equation(
        "19",
        "position comparison, absolute positions",
        code="theory.constructions:comparison",
        tests="constructions::test_small_embeddings_compare_positions",
    ),
    equation(
        "20",
        "its limit for small embeddings",
        code="theory.constructions:comparison",
        tests="constructions::test_small_embeddings_compare_positions",
    ),
    equation(
        "21",
        "p_m.p_n as a delta function",
        code="theory.kernel:kernel theory.kernel:kernel_limit",
        tests=(
            "kernel::test_the_kernel_is_no_delta_at_any_width "
            "kernel::test_limit_of_the_kernel_is_an_integral "
            "kernel::test_evenly_spaced_frequencies_give_the_delta_that_the_paper_wants"
        ),
    ),
    equation(
        "22",
        "position comparison, rotary positions",
        code="theory.constructions:comparison",
        tests="constructions::test_a_constant_embedding_compares_positions",
    ),
    equation(
        "23",
        "a sum of cosines as a delta function",
        code="theory.kernel:kernel theory.kernel:missed_weight",
        tests=(
            "constructions::test_a_constant_embedding_compares_positions "
            "kernel::test_softmax_makes_a_delta_of_the_kernel"
        ),
    ),
    equation(
        "24",
        "absolute positions: what a token-dependent offset needs",
        code="theory.constructions:absolute_pointing",
        tests=(
            "constructions::test_absolute_sinusoids_can_point_within_a_window "
            "constructions::test_absolute_sinusoids_cannot_point_at_every_position"
        ),
    ),
    equation(
        "25",
        "keys that see positions only",
        code="theory.constructions:absolute_pointing",
        tests="constructions::test_absolute_sinusoids_can_point_within_a_window",
    ),
    equation(
        "26",
        "queries that see tokens only",
        tests="constructions::test_absolute_sinusoids_can_point_within_a_window",
        reason="a requirement that the construction in use does without: its queries see both",
    ),
    equation(
        "27",
        "queries of “next” and “nexnext”, keys 1",
        code="theory.constructions:pointing",
        tests=(
            "constructions::test_next_and_nexnext_with_the_conjugate_phase "
            "constructions::test_printed_phases_attend_to_the_tokens_before"
        ),
    ),
    equation(
        "28",
        "their attention as delta functions",
        code="theory.constructions:pointing theory.kernel:missed_weight",
        tests=(
            "constructions::test_the_sums_are_no_delta_but_softmax_sharpens_them "
            "constructions::test_a_target_ahead_needs_attention_without_a_mask"
        ),
    ),
    equation(
        "29",
        "a complex projection and embeddings that give them",
        code="theory.constructions:pointing",
        tests=(
            "constructions::test_next_and_nexnext_with_the_conjugate_phase "
            "constructions::test_the_solution_lies_in_the_complex_subspace "
            "constructions::test_the_free_numbers_must_sum_to_one_positive_value"
        ),
    ),
    equation(
        "30",
        "the weight of CRoPE",
        code="model.complex_linear:ComplexLinear theory.complex_structure:complex_part",
        tests=(
            "model/complex_linear::test_dense_weight_is_laid_out_as_in_eq_30 "
            "complex_structure::test_complex_part_is_the_nearest_weight_that_complexlinear_can_hold"
        ),
    ),
)
