"""Eqs. 11 to 37 of RoFormer: rows of equations.py."""

from __future__ import annotations

from crope.theory.equation import Equation, equation

_STEP = "a step of the derivation; its test follows the whole chain in numbers"
_DERIVATION = "roformer::test_the_derivation_in_the_plane"

ROFORMER_EQUATIONS: tuple[Equation, ...] = (
    equation(
        "11",
        "the inner product may depend on m - n only",
        code="model.positions:RotaryEmbedding",
        tests="model/positions::test_scores_depend_on_the_distance_only",
    ),
    equation(
        "12", "the plane: rotation by m theta", code="theory.roformer:rotary_matrix", tests="roformer::test_the_plane"
    ),
    equation(
        "13",
        "the plane: as a matrix",
        code="theory.roformer:rotary_matrix",
        tests="roformer::test_the_plane companions::test_the_reference_pages_plane",
    ),
    equation(
        "14",
        "general form: R_m W x",
        code="model.positions:RotaryEmbedding model.attention:CausalAttention",
        tests="model/attention::test_against_written_out_softmax",
    ),
    equation(
        "15",
        "the rotary matrix and its frequencies",
        code="theory.roformer:rotary_matrix theory.kernel:frequencies",
        tests="roformer::test_the_cheap_rotation_is_the_matrix companions::test_the_slides_block_matrix",
    ),
    equation(
        "16",
        "scores hold R_{n-m}",
        code="theory.roformer:rotary_matrix",
        tests=(
            "roformer::test_rotations_compose_and_are_orthogonal "
            "roformer::test_relative_score_needs_the_transpose_of_w_q"
        ),
    ),
    equation(
        "17",
        "attention with any similarity",
        code="theory.attention:attend",
        tests="roformer::test_softmax_is_another_similarity_of_the_same_form",
    ),
    equation(
        "18",
        "linear attention",
        code="theory.roformer:linear_attention",
        tests="roformer::test_linear_attention_against_loops",
    ),
    equation(
        "19",
        "linear attention with rotary positions",
        code="theory.roformer:linear_attention",
        tests=(
            "roformer::test_linear_attention_against_loops "
            "roformer::test_weights_of_rotary_linear_attention_are_no_probabilities"
        ),
    ),
    equation("20", "queries and keys as functions of position", reason="a definition"),
    equation("21", "their inner product as g(x_m, x_n, n - m)", tests=_DERIVATION, reason=_STEP),
    equation("22", "initial condition at position 0", reason="a definition"),
    equation("23", "polar forms of f and g", reason="a definition"),
    equation("24", "radii multiply, angles subtract", tests=_DERIVATION, reason=_STEP),
    equation("25", "polar forms of the initial condition", reason="a definition"),
    equation("26", "radii and angles at m = n", tests=_DERIVATION, reason=_STEP),
    equation("27", "radii do not depend on position", tests=_DERIVATION, reason=_STEP),
    equation("28", "angles are phi(m) plus the token's", tests=_DERIVATION, reason=_STEP),
    equation("29", "phi(m + 1) - phi(m) is constant", tests=_DERIVATION, reason=_STEP),
    equation("30", "phi is an arithmetic progression", tests=_DERIVATION, reason=_STEP),
    equation("31", "the general solution", tests=_DERIVATION, reason=_STEP),
    equation("32", "the initial condition is W x", reason="a definition (printed with x_n for the query's x_m)"),
    equation(
        "33",
        "the solution with gamma = 0",
        code="model.positions:RotaryEmbedding",
        tests="roformer::test_the_derivation_in_the_plane roformer::test_the_plane",
    ),
    equation(
        "34",
        "the rotation by element-wise products",
        code="theory.roformer:rotate_cheaply model.positions:RotaryEmbedding",
        tests="roformer::test_the_cheap_rotation_is_the_matrix",
    ),
    equation(
        "35",
        "the score as a complex sum",
        code="theory.complex_form:rotary_score",
        tests=(
            "complex_form::test_rotary_score_is_the_models_and_depends_on_the_distance "
            "kernel::test_abel_transformation_and_the_bound"
        ),
    ),
    equation(
        "36",
        "Abel transformation of that sum",
        code="theory.kernel:partial_sums",
        tests="kernel::test_partial_sums_against_a_loop kernel::test_abel_transformation_and_the_bound",
    ),
    equation(
        "37",
        "the bound whose decay Fig. 2 shows",
        code="theory.kernel:relative_bound theory.kernel:decay_curves",
        tests="kernel::test_abel_transformation_and_the_bound kernel::test_decay_is_that_of_roformers_figure_2",
    ),
)
