"""Models from the ``config.json`` of Hugging Face's transformers, by ``model_type``.

What each type has is read from transformers' ``configuration_*.py`` (names and defaults) and
``modeling_*.py`` (which products have biases, how many norms there are, which layers differ).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def fields_of(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a configuration says of each field of ``Model``; ``latent`` has those of ``Latent``.

    :param config: the names and values of the file; of a model with pictures too, its text's part.
    :param name: what the model is called in results.
    :raises ValueError: for what the file lacks, and for another kind of model.
    """
    kind = config.get("model_type", "llama")
    inside: Any = config.get("text_config")
    if kind in _WITH_PICTURES and hasattr(inside, "get"):
        outside = {"tie_word_embeddings": config.get("tie_word_embeddings")}
        values = {"model_type": _WITH_PICTURES[kind]} | outside | dict(inside)
        return fields_of(values, name)
    if kind == "gpt2" or "n_embd" in config:
        return _gpt2(config, name)
    if not isinstance(kind, str) or kind not in _READERS:
        raise ValueError(
            f"a model of type {kind!r} has no closed form: known are {', '.join(DECODERS)}; "
            "for any other module use portagpu.planning.track"
        )
    return {**_READERS[kind](config), "name": name}


_WITH_PICTURES: Final = {"gemma3": "gemma3_text", "llama4": "llama4_text"}
"""Types whose ``text_config`` is the decoder -> its type."""


def _llama(config: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """RMSNorm, rotary positions, grouped queries and a gated MLP; biases where the file has them.

    :param more: what the type has in other ways; a value of it replaces what is read.
    """
    hidden, heads = _whole(config, "hidden_size"), _whole(config, "num_attention_heads")
    attention, mlp = _truth(config, "attention_bias", False), _truth(config, "mlp_bias", False)
    read: dict[str, Any] = {
        "layers": _whole(config, "num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": _whole(config, "num_key_value_heads", heads),
        "head_size": _whole(config, "head_dim", hidden // heads),
        "vocabulary": _whole(config, "vocab_size"),
        "tied": _truth(config, "tie_word_embeddings", False),
        "biases": attention and mlp,
        "query_biases": attention and not mlp,
        "output_bias": attention and not mlp,
    }
    if "inner" not in more:
        more["inner"] = _whole(config, "intermediate_size")
    return read | more


def _mixtral(config: Mapping[str, Any]) -> dict[str, Any]:
    """Experts, named in one of two ways; without any it is a dense model."""
    experts = _whole(config, "num_local_experts", _whole(config, "num_experts", 0))
    active = _whole(config, "num_experts_per_tok", 0) if experts else 0
    return _llama(config, experts=experts, active_experts=active, **_everywhere(config))


def _everywhere(config: Mapping[str, Any]) -> dict[str, Any]:
    """A window of all layers, if there is one."""
    window = _whole(config, "sliding_window", 0)
    layers = _whole(config, "num_hidden_layers")
    return {"window": window, "windowed_layers": tuple(range(layers)) if window else ()}


def _qwen2(config: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Biases of queries, keys and values; windows from ``max_window_layers`` on, if used at all."""
    if _truth(config, "use_sliding_window", False):
        layers = _whole(config, "num_hidden_layers")
        first = _whole(config, "max_window_layers", 28, least=0)
        more |= {"window": _whole(config, "sliding_window", 4096),
                 "windowed_layers": tuple(range(first, layers))}  # fmt: skip
    return _llama(config, **{"query_biases": True} | more)


def _qwen3(config: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    biases = _truth(config, "attention_bias", False)
    return _qwen2(config, query_biases=biases, head_norms=True, **more)


def _qwen_experts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Experts in every ``decoder_sparse_step``-th layer but ``mlp_only_layers``."""
    layers, step = _whole(config, "num_hidden_layers"), _whole(config, "decoder_sparse_step", 1)
    dense = {*_positions(config, "mlp_only_layers")}
    return _with_experts(
        [each for each in range(layers) if each in dense or (each + 1) % step],
        _whole(config, "intermediate_size"),
        inner=_whole(config, "moe_intermediate_size"),
        experts=_whole(config, "num_experts"),
        active_experts=_whole(config, "num_experts_per_tok"),
    )


def _with_experts(plain: Iterable[int], width: int, **more: Any) -> dict[str, Any]:
    """Values of a model some of whose layers have an MLP of that width instead of experts."""
    found = tuple(plain)
    return {"plain_layers": found, "plain_inner": width if found else 0, **more}


def _qwen2_moe(config: Mapping[str, Any]) -> dict[str, Any]:
    shared = _whole(config, "shared_expert_intermediate_size")
    more = _qwen_experts(config)
    return _qwen2(config, shared_inner=shared, shared_gate=True, **more)


def _qwen3_moe(config: Mapping[str, Any]) -> dict[str, Any]:
    return _qwen3(config, **_qwen_experts(config))


def _gemma(config: Mapping[str, Any]) -> dict[str, Any]:
    return _llama(config, tied=_truth(config, "tie_word_embeddings", True))


def _gemma2(config: Mapping[str, Any]) -> dict[str, Any]:
    """Norms before and after attention and the MLP; every other layer has a window, from the
    first on."""
    return _gemmas({"sliding_window": 4096} | {**config}, every=2)


def _gemma3(config: Mapping[str, Any]) -> dict[str, Any]:
    """As gemma2, with norms of queries and keys; each sixth layer has no window."""
    defaults = {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
    }
    every = _whole(config, "sliding_window_pattern", 6)
    return _gemmas(defaults | {**config}, every=every, head_norms=True)


def _gemmas(config: Mapping[str, Any], every: int, **more: Any) -> dict[str, Any]:
    tied = _truth(config, "tie_word_embeddings", True)
    layers = _whole(config, "num_hidden_layers")
    windows = _windows(config, "sliding_window", [(each + 1) % every > 0 for each in range(layers)])
    return _llama(config, norms=4, tied=tied, **windows | more)


def _windows(config: Mapping[str, Any], key: str, usual: list[bool]) -> dict[str, Any]:
    """The window, and the layers that have it: by ``layer_types``, else as is usual."""
    named = config.get("layer_types")
    if named is not None and (not isinstance(named, list) or len(named) != len(usual)):
        raise ValueError(f"'layer_types' has one name for each of {len(usual)} layers")
    seen = usual if named is None else [each != "full_attention" for each in named]
    window = _whole(config, key, 0)
    found = tuple(at for at, windowed in enumerate(seen) if windowed and window)
    return {"window": window, "windowed_layers": found}


def _gpt_oss(config: Mapping[str, Any]) -> dict[str, Any]:
    """Biases everywhere, a sink for each head, and a window in every other layer."""
    layers = _whole(config, "num_hidden_layers")
    return _llama(
        config,
        head_size=_whole(config, "head_dim", 64),
        experts=_whole(config, "num_local_experts"),
        active_experts=_whole(config, "num_experts_per_tok"),
        biases=True,
        query_biases=False,
        output_bias=False,
        sinks=True,
        **_windows(config, "sliding_window", [each % 2 == 0 for each in range(layers)]),
    )


def _llama4(config: Mapping[str, Any]) -> dict[str, Any]:
    """One expert that every token takes, of the width of the others; chunks of attention but in
    each fourth layer."""
    layers, step = (
        _whole(config, "num_hidden_layers"),
        _whole(config, "interleave_moe_layer_step", 1),
    )
    routed = _positions(config, "moe_layers") or range(step - 1, layers, step)
    every = _whole(config, "no_rope_layer_interval", 4)
    inner = _whole(config, "intermediate_size")
    usual = [(each + 1) % every > 0 for each in range(layers)]
    return _llama(
        config,
        shared_inner=inner,
        **_with_experts(
            [each for each in range(layers) if each not in routed],
            _whole(config, "intermediate_size_mlp"),
            inner=inner,
            experts=_whole(config, "num_local_experts"),
            active_experts=_whole(config, "num_experts_per_tok", 1),
        ),
        **_windows(config, "attention_chunk_size", usual),
    )


def _deepseek(config: Mapping[str, Any]) -> dict[str, Any]:
    """Latent attention, many narrow experts and shared ones, and plain layers at the beginning.

    The router's bias is a buffer that no gradient changes, and does not count.
    """
    if _truth(config, "attention_bias", False):
        raise ValueError("latent attention with biases has no closed form")
    layers, rotary = _whole(config, "num_hidden_layers"), _whole(config, "qk_rope_head_dim")
    inner = _whole(config, "moe_intermediate_size")
    first, step = (
        _whole(config, "first_k_dense_replace", 0, least=0),
        _whole(config, "moe_layer_freq", 1),
    )
    return _llama(
        config,
        kv_heads=_whole(config, "num_attention_heads"),
        head_size=_whole(config, "qk_nope_head_dim") + rotary,
        latent={
            "key_rank": _whole(config, "kv_lora_rank"),
            "query_rank": _whole(config, "q_lora_rank", 0),
            "rotary": rotary,
            "value_size": _whole(config, "v_head_dim"),
        },
        shared_inner=inner * _whole(config, "n_shared_experts", 0, least=0),
        **_with_experts(
            [each for each in range(layers) if each < first or each % step],
            _whole(config, "intermediate_size"),
            inner=inner,
            experts=_whole(config, "n_routed_experts"),
            active_experts=_whole(config, "num_experts_per_tok"),
        ),
    )


def _falcon(config: Mapping[str, Any]) -> dict[str, Any]:
    """A parallel block with one norm, or with two in its newer architecture; one KV head, or as
    many as stated."""
    hidden = _whole(config, "hidden_size")
    heads = _whole(config, "num_attention_heads", _whole(config, "n_head", 0)) or _whole(
        config, "num_attention_heads"
    )
    layers = _whole(config, "num_hidden_layers", _whole(config, "n_layer", 0))
    newer = _truth(config, "new_decoder_architecture", False)
    parallel = newer or _truth(config, "parallel_attn", True)
    single = not newer and _truth(config, "multi_query", True)
    stated = _whole(config, "num_kv_heads", _whole(config, "n_head_kv", heads))
    norms = _whole(config, "num_ln_in_parallel_attn", 2 if newer else 1) if parallel else 2
    return _llama(
        {"num_attention_heads": heads, "num_hidden_layers": layers, **config},
        kv_heads=1 if single else stated if newer else heads,
        head_size=hidden // heads,
        inner=_whole(config, "ffn_hidden_size", 4 * hidden),
        gated=False,
        biases=_truth(config, "bias", False),
        norm_biases=True,
        norms=norms,
        parallel=parallel,
        tied=_truth(config, "tie_word_embeddings", True),
    )


def _phi(config: Mapping[str, Any]) -> dict[str, Any]:
    """A parallel block with one norm, and biases everywhere, at the output head too."""
    return _llama(config, gated=False, biases=True, norm_biases=True, head_bias=True, norms=1,
                  parallel=True)  # fmt: skip


def _gpt_neox(config: Mapping[str, Any]) -> dict[str, Any]:
    """A parallel block with two norms, unless ``use_parallel_residual`` is false."""
    parallel = _truth(config, "use_parallel_residual", True)
    return _llama(config, gated=False, biases=True, query_biases=False, output_bias=False,
                  norm_biases=True, parallel=parallel)  # fmt: skip


def _gpt2(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    hidden, heads = _whole(config, "n_embd"), _whole(config, "n_head")
    return {
        "name": name,
        "layers": _whole(config, "n_layer"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": heads,
        "head_size": hidden // heads,
        "inner": _whole(config, "n_inner", 4 * hidden),
        "vocabulary": _whole(config, "vocab_size"),
        "positions": _whole(config, "n_positions"),
        "gated": False,
        "tied": True,
        "biases": True,
        "norm_biases": True,
        "dropout": True,
    }


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "llama": _mixtral,
    "mistral": _mixtral,
    "mixtral": _mixtral,
    "phi3": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt_oss": _gpt_oss,
    "llama4_text": _llama4,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "falcon": _falcon,
    "phi": _phi,
    "gpt_neox": _gpt_neox,
}
DECODERS: Final = (*_READERS, *_WITH_PICTURES, "gpt2")
"""Values of ``model_type`` that are read."""


def _whole(
    config: Mapping[str, Any], key: str, otherwise: int | None = None, *, least: int = 1
) -> int:
    """A number from ``least`` on, or ``otherwise`` where there is none."""
    value = config.get(key)
    if value is None:
        if otherwise is None:
            raise ValueError(f"the configuration has no {key!r}")
        return otherwise
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{key!r} must be a whole number of at least {least}, not {value!r}")
    return value


def _truth(config: Mapping[str, Any], key: str, otherwise: bool) -> bool:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key!r} is true or false, not {value!r}")
    return otherwise if value is None else value


def _positions(config: Mapping[str, Any], key: str) -> list[int]:
    """A list of layers; empty where there is none."""
    value = config.get(key)
    found = [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(each, int) for each in found):
        raise ValueError(f"{key!r} is a list of layers, not {value!r}")
    return found
