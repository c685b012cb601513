"""The sizes of a transformer that decide its memory and time, and published configurations.

Counts are exact for the decoders that they describe: token embedding, layers of attention and MLP,
a last norm and an output head. Norms count, biases only where ``biases`` says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portagpu.base.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_SIZE: Final = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder. ``head_size`` is of one head, ``inner`` of the MLP (of one expert, if there are).

    ``gated`` MLPs have three matrices, others two. ``tied`` embeddings are also the output head.
    ``positions`` are learned position embeddings, 0 for rotary ones. ``experts`` is 0 for a dense
    model; of the others each token takes ``active_experts``. Raises ValueError for impossible
    sizes.
    """

    name: str = "model"
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    vocabulary: int
    gated: bool = True
    tied: bool = False
    biases: bool = False
    norm_biases: bool = False
    positions: int = 0
    experts: int = 0
    active_experts: int = 0
    dropout: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_size", "inner", "vocabulary"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 < value < _MAX_SIZE:
                raise ValueError(
                    f"a model's {name} is a whole number from 1 to {_MAX_SIZE - 1:,}, not {value!r}"
                )
        if not 0 <= self.positions < _MAX_SIZE or not 0 <= self.experts < _MAX_SIZE:
            raise ValueError(f"positions and experts are from 0 to {_MAX_SIZE - 1:,}")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.kv_heads} kv_heads do not divide {self.heads} heads")
        if self.experts and not 0 < self.active_experts <= self.experts:
            raise ValueError(
                f"active_experts is from 1 to {self.experts}, not {self.active_experts}"
            )

    @property
    def attention_parameters(self) -> int:
        """Of one layer: query, key, value and output."""
        query, key = self.heads * self.head_size, self.kv_heads * self.head_size
        biases = query + 2 * key + self.hidden if self.biases else 0
        return 2 * self.hidden * query + 2 * self.hidden * key + biases

    @property
    def mlp_parameters(self) -> int:
        """Of one layer's MLP, or of one expert."""
        biases = self.inner * (2 if self.gated else 1) + self.hidden if self.biases else 0
        return (3 if self.gated else 2) * self.hidden * self.inner + biases

    @property
    def norm_parameters(self) -> int:
        """Of one norm."""
        return self.hidden * (2 if self.norm_biases else 1)

    @property
    def dense_layer_parameters(self) -> int:
        """Of one layer, without experts: attention, norms, and the MLP or the router."""
        rest = self.hidden * self.experts if self.experts else self.mlp_parameters
        return self.attention_parameters + 2 * self.norm_parameters + rest

    @property
    def expert_layer_parameters(self) -> int:
        """Of all experts of one layer."""
        return self.experts * self.mlp_parameters

    @property
    def embedding_parameters(self) -> int:
        """Of the token and position embeddings."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Of the last norm and of an output head of its own."""
        return self.norm_parameters + (0 if self.tied else self.vocabulary * self.hidden)

    @property
    def parameters(self) -> int:
        """All of them."""
        layer = self.dense_layer_parameters + self.expert_layer_parameters
        return self.embedding_parameters + self.layers * layer + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Those that multiply one token: active experts, and the head, but no look-up."""
        layer = self.dense_layer_parameters + self.active_experts * self.mlp_parameters
        return self.layers * layer + self.norm_parameters + self.vocabulary * self.hidden

    @classmethod
    def from_config(cls, config: Mapping[str, Any], name: str = "model") -> Model:
        """The model of a Hugging Face ``config.json``.

        Biases of attention's inputs and norms inside of it, which some have, are left out.

        :param config: the names and values of the file.
        :param name: what the model is called in results.
        :raises ValueError: for what the file lacks, and for another kind of model.
        """
        kind = config.get("model_type", "llama")
        if kind == "gpt2" or "n_embd" in config:
            names = ("n_layer", "n_embd", "n_head", "n_positions", "vocab_size")
            sizes = [_whole(config, each) for each in names]
            return _gpt(name, *sizes, inner=_whole(config, "n_inner", 4 * sizes[1]))
        if kind not in DECODERS:
            raise ValueError(
                f"a model of type {kind!r} has no closed form: known are {', '.join(DECODERS)}; "
                "for any other module use portagpu.planning.track"
            )
        hidden, heads = _whole(config, "hidden_size"), _whole(config, "num_attention_heads")
        experts = _whole(config, "num_local_experts", _whole(config, "num_experts", 0))
        inner = "moe_intermediate_size" if experts and "moe_intermediate_size" in config else None
        return cls(
            name=name,
            layers=_whole(config, "num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=_whole(config, "num_key_value_heads", heads),
            head_size=_whole(config, "head_dim", hidden // heads),
            inner=_whole(config, inner or "intermediate_size"),
            vocabulary=_whole(config, "vocab_size"),
            tied=_truth(config, "tie_word_embeddings", kind == "gemma"),
            experts=experts,
            active_experts=_whole(config, "num_experts_per_tok", 0) if experts else 0,
        )


DECODERS: Final = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma", "phi3",
                   "gpt2")  # fmt: skip
"""Values of ``model_type`` whose layers are as described here."""


def _whole(config: Mapping[str, Any], key: str, otherwise: int | None = None) -> int:
    """A number above 0, or ``otherwise`` where there is none."""
    value = config.get(key)
    if value is None:
        if otherwise is None:
            raise ValueError(f"the configuration has no {key!r}")
        return otherwise
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{key!r} must be a whole number above 0, not {value!r}")
    return value


def _truth(config: Mapping[str, Any], key: str, otherwise: bool) -> bool:
    value = config.get(key)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key!r} is true or false, not {value!r}")
    return otherwise if value is None else value


def _gpt(name: str, *sizes: int, inner: int | None = None) -> Model:
    layers, hidden, heads, positions, vocabulary = sizes
    return Model(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_size=hidden // heads,
        inner=inner or 4 * hidden,
        vocabulary=vocabulary,
        positions=positions,
        gated=False,
        tied=True,
        biases=True,
        norm_biases=True,
        dropout=True,
    )


def _llama(name: str, *sizes: int, **more: Any) -> Model:
    layers, hidden, heads, kv_heads, inner, vocabulary = sizes
    return Model(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=hidden // heads,
        inner=inner,
        vocabulary=vocabulary,
        **more,
    )


MODELS: Final[Mapping[str, Model]] = {
    model.name: model
    for model in (
        _gpt("gpt2", 12, 768, 12, 1024, 50257),
        _gpt("gpt3-175b", 96, 12288, 96, 2048, 50257),
        _llama("llama-2-7b", 32, 4096, 32, 32, 11008, 32000),
        _llama("llama-2-13b", 40, 5120, 40, 40, 13824, 32000),
        _llama("llama-2-70b", 80, 8192, 64, 8, 28672, 32000),
        _llama("llama-3.1-8b", 32, 4096, 32, 8, 14336, 128256),
        _llama("llama-3.1-70b", 80, 8192, 64, 8, 28672, 128256),
        _llama("llama-3.1-405b", 126, 16384, 128, 8, 53248, 128256),
        _llama("mistral-7b", 32, 4096, 32, 8, 14336, 32000),
        _llama("mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000, experts=8, active_experts=2),
    )
}
"""Published models by name: the ``config.json`` of each on its maker's page; GPT-3: Brown et al.
2020, arXiv:2005.14165, table 2.1. The tests hold them to the published counts of parameters."""


def find_model(name: str) -> Model:
    """The model of ``MODELS`` with that name; raises ValueError, which says what to give."""
    if name in MODELS:
        return MODELS[name]
    named = did_you_mean(name, MODELS, "", 3)
    hint = f"; {named}" if named else ""
    raise ValueError(
        f"unknown model {name!r}: give a config.json, the folder that has it, or a name: "
        f"{', '.join(MODELS)}{hint}"
    )


def read_model(text: str, name: str) -> Model:
    """The model of the text of a Hugging Face ``config.json``.

    :param text: the text of the file.
    :param name: what the model is called in results and errors.
    :raises ValueError: for anything else, in one line with ``name``.
    """
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not the config.json of a model: it is not JSON") from error
    try:
        if not hasattr(config, "get"):
            raise ValueError("it is not the config.json of a model: it has no names and values")
        return Model.from_config(config, name)
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error
