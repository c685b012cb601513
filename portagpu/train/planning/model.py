"""The sizes of a transformer that decide its memory and time, and published configurations.

Counts are exact for the decoders that they describe: token embedding, layers of attention and MLP,
a last norm and an output head. Norms count, and biases where the model has them.
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
class Latent:
    """Multi-head latent attention: keys and values of all heads come from one short vector.

    ``key_rank`` is that vector's size, ``query_rank`` the one of queries (0: queries are not
    compressed). ``rotary`` is the part of a query or key that has positions, which is the same for
    all heads; the rest of ``Model.head_size`` has none. ``value_size`` is of one head's value.
    Source: DeepSeek-V2, arXiv:2405.04434, section 2.1.
    """

    key_rank: int
    rotary: int
    value_size: int
    query_rank: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder. ``head_size`` is of one head, ``inner`` of the MLP (of one expert, if there are).

    ``gated`` MLPs have three matrices, others two. ``tied`` embeddings are also the output head.
    ``positions`` are learned position embeddings, 0 for rotary ones. ``experts`` is 0 for a dense
    model; of the others each token takes ``active_experts``, and ``shared_inner`` is the width of
    the experts that every token takes, whose share ``shared_gate`` weighs. The layers at the
    positions ``plain_layers`` have an MLP of ``plain_inner`` instead of experts. ``biases`` are of
    every product in a layer, ``query_biases`` of queries, keys and values alone, ``output_bias`` of
    attention's result, ``head_bias`` of the output head. ``norms`` of a layer are two, four if
    results are normed too, and one or two if attention and MLP are ``parallel``: they read the same
    input. ``head_norms`` norm queries and keys; with ``sinks`` each head has a logit that takes
    attention away. The layers at ``windowed_layers`` see ``window`` tokens. Raises ValueError for
    impossible sizes.
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
    shared_inner: int = 0
    shared_gate: bool = False
    plain_layers: tuple[int, ...] = ()
    plain_inner: int = 0
    query_biases: bool = False
    output_bias: bool = False
    head_bias: bool = False
    norms: int = 2
    head_norms: bool = False
    parallel: bool = False
    sinks: bool = False
    window: int = 0
    windowed_layers: tuple[int, ...] = ()
    latent: Latent | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_size", "inner", "vocabulary"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 < value < _MAX_SIZE:
                raise ValueError(
                    f"a model's {name} is a whole number from 1 to {_MAX_SIZE - 1:,}, not {value!r}"
                )
        for name in ("positions", "experts", "shared_inner", "plain_inner", "window"):
            if not 0 <= getattr(self, name) < _MAX_SIZE:
                raise ValueError(f"a model's {name} is from 0 to {_MAX_SIZE - 1:,}")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.kv_heads} kv_heads do not divide {self.heads} heads")
        if self.experts and not 0 < self.active_experts <= self.experts:
            raise ValueError(
                f"active_experts is from 1 to {self.experts}, not {self.active_experts}"
            )
        for name, size in (("plain_layers", "plain_inner"), ("windowed_layers", "window")):
            found = getattr(self, name)
            if {*found} - {*range(self.layers)} or (found and not getattr(self, size)):
                raise ValueError(
                    f"{name} are positions from 0 to {self.layers - 1}, with {size} above 0"
                )
        if self.latent is not None and not 0 < self.latent.rotary < self.head_size:
            raise ValueError(
                f"the rotary part of a latent head is from 1 to {self.head_size - 1}, "
                f"not {self.latent.rotary}"
            )

    @property
    def value_size(self) -> int:
        """Of one head's value."""
        return self.head_size if self.latent is None else self.latent.value_size

    @property
    def attention_matrices(self) -> tuple[tuple[int, int], ...]:
        """(inputs, outputs) of each product of a layer's attention: query, key, value, output."""
        query, result = self.heads * self.head_size, self.heads * self.value_size
        latent = self.latent
        if latent is None:
            key = self.kv_heads * self.head_size
            return (
                (self.hidden, query),
                (self.hidden, key),
                (self.hidden, key),
                (result, self.hidden),
            )
        rank = latent.query_rank
        queries = ((self.hidden, rank), (rank, query)) if rank else ((self.hidden, query),)
        expanded = self.heads * (self.head_size - latent.rotary + latent.value_size)
        return (
            *queries,
            (self.hidden, latent.key_rank + latent.rotary),
            (latent.key_rank, expanded),
            (result, self.hidden),
        )

    @property
    def attention_parameters(self) -> int:
        """Of one layer: the products with their biases, the norms inside of it, and the sinks."""
        products = self.attention_matrices
        biases = sum(outputs for _, outputs in products) if self.biases else 0
        if self.query_biases:
            biases += (self.heads + 2 * self.kv_heads) * self.head_size
        if self.output_bias:
            biases += self.hidden
        norms = 2 * self.head_size if self.head_norms else 0
        if self.latent is not None:
            norms += self.latent.query_rank + self.latent.key_rank
        sinks = self.heads if self.sinks else 0
        return sum(inputs * outputs for inputs, outputs in products) + biases + norms + sinks

    @property
    def mlp_parameters(self) -> int:
        """Of one layer's MLP, or of one expert."""
        return self._mlp(self.inner)

    def _mlp(self, inner: int) -> int:
        biases = inner * (2 if self.gated else 1) + self.hidden if self.biases else 0
        return (3 if self.gated else 2) * self.hidden * inner + biases

    @property
    def norm_parameters(self) -> int:
        """Of one norm."""
        return self.hidden * (2 if self.norm_biases else 1)

    @property
    def dense_layer_parameters(self) -> int:
        """Of one layer, without experts: attention, norms, and the MLP, or what goes with experts.

        That is the router, and the experts that every token takes.
        """
        rest = self.mlp_parameters
        if self.experts:
            rest = self.hidden * self.experts + (self.experts if self.biases else 0)
            rest += self._mlp(self.shared_inner) if self.shared_inner else 0
            rest += self.hidden if self.shared_gate else 0
        return self.attention_parameters + self.norms * self.norm_parameters + rest

    @property
    def plain_layer_parameters(self) -> int:
        """Of one of ``plain_layers``."""
        norms = self.norms * self.norm_parameters
        return self.attention_parameters + norms + self._mlp(self.plain_inner)

    @property
    def expert_layer_parameters(self) -> int:
        """Of all experts of one layer that tokens choose from."""
        return self.experts * self.mlp_parameters

    @property
    def embedding_parameters(self) -> int:
        """Of the token and position embeddings."""
        return (self.vocabulary + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Of the last norm and of an output head of its own."""
        bias = self.vocabulary if self.head_bias else 0
        head = 0 if self.tied else self.vocabulary * self.hidden
        return self.norm_parameters + head + bias

    def _layers(self, experts: int) -> int:
        """Of all layers, with as many of the experts."""
        plain = len(self.plain_layers)
        routed = self.dense_layer_parameters + experts * self.mlp_parameters
        return (self.layers - plain) * routed + plain * self.plain_layer_parameters

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.embedding_parameters + self._layers(self.experts) + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Those that multiply one token: active experts, and the head, but no look-up."""
        layers = self._layers(self.active_experts)
        return layers + self.norm_parameters + self.vocabulary * self.hidden

    def span(self, sequence: int) -> float:
        """Tokens that a token's attention looks at, of ``sequence``, on average over layers.

        A causal mask takes none away, as in arXiv:2204.02311.
        """
        seen = min(self.window, sequence) * len(self.windowed_layers)
        return (seen + sequence * (self.layers - len(self.windowed_layers))) / self.layers

    def adapter_parameters(self, rank: int, matrices: str) -> int:
        """Of low-rank adapters in all layers: rank x (inputs + outputs) of each adapted product.

        Experts that tokens choose from have none. Source: arXiv:2106.09685, section 4.1.

        :param rank: the adapters' rank.
        :param matrices: which products: a word of ``recipe.ADAPTED``.
        :raises ValueError: for queries and values of latent attention, which has no such products.
        """
        return rank * sum(
            inputs + outputs
            for position in range(self.layers)
            for inputs, outputs in self._adapted(position, matrices)
        )

    def _adapted(self, position: int, matrices: str) -> tuple[tuple[int, int], ...]:
        found = self.attention_matrices
        if matrices == "queries-values":
            if self.latent is not None:
                raise ValueError("latent attention has no products of queries and values: adapt "
                                 "attention or all")  # fmt: skip
            return found[0], found[2]
        inner = self.plain_inner if position in self.plain_layers else self.inner
        if self.experts and position not in self.plain_layers:
            inner = self.shared_inner
        if matrices == "attention" or not inner:
            return found
        into = ((self.hidden, inner),) * (2 if self.gated else 1)
        return (*found, *into, (inner, self.hidden))

    @classmethod
    def from_config(cls, config: Mapping[str, Any], name: str = "model") -> Model:
        """The model of a Hugging Face ``config.json``; of its text, where it has pictures too.

        Layers that predict further tokens in training alone (DeepSeek-V3's) are left out.

        :param config: the names and values of the file.
        :param name: what the model is called in results.
        :raises ValueError: for what the file lacks, and for another kind of model.
        """
        from portagpu.train.planning.configurations import fields_of

        fields = fields_of(config, name)
        latent = fields.pop("latent", None)
        return cls(latent=None if latent is None else Latent(**latent), **fields)


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
