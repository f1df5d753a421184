"""What is measured: a name, and how one way of attention is prepared for it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ..decode_model.hugging_face import StaticHuggingFaceStep, hugging_face_model
from ..decode_model.measure import Replay
from ..decode_model.model import KEY_DEVIATION, Model, Shape, StepConfiguration, make_model
from . import training

Observed = dict[str, torch.Tensor]


class Work(Protocol):
    def __call__(self) -> Any:
        """What is timed."""

    def observed(self) -> Observed:
        """What all ways of attention must agree on."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    llama: Shape
    context: int  # of prefill, and of a decoding step with the step's own token
    prompt: int
    generated: int
    gpt2: training.TrainingShape


FULL = Sizes(Shape(8, 4096, 32, 8, 128, 14336, 32000, 5e5), 4096, 512, 32, training.SHAPES[0])
TINY = Sizes(Shape(2, 64, 8, 2, 16, 96, 101, 5e5), 48, 16, 4, training.TINY[0])


@dataclasses.dataclass(frozen=True)
class Case:
    """prepare: of an attn_implementation. expected: the same, where a way may fail that says nothing about results."""

    name: str
    label: str
    prepare: Callable[[str], Work]
    expected: Callable[[str], Work]
    has_gradients: bool = False


def tokens_of(shape: Shape, count: int, device: str) -> torch.Tensor:
    """(1, count), the same each time."""
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, shape.vocabulary, (1, count), generator=generator).to(device)


def make_llama(sizes: Sizes, device: str) -> Model:
    """Scores of prompts differ as those of its caches would, so that keys which are missing are seen."""
    model = make_model(sizes.llama, sizes.llama.layers, sizes.context, device)
    wide = sizes.llama.heads_q * sizes.llama.head_dim
    for layer in model.held:
        layer.qkv[:wide] *= KEY_DEVIATION
        layer.kv[0] /= KEY_DEVIATION
    return model


class Prefill:
    """A prompt into a new cache, and the logits of its last token, as `generate` asks for them."""

    def __init__(self, model: Model, sizes: Sizes, attention: str) -> None:
        self.llama = hugging_face_model(model, sizes.context, attention)
        self.tokens = tokens_of(model.shape, sizes.context, str(model.head.device))

    def __call__(self) -> Any:
        return self.llama(self.tokens, use_cache=True, logits_to_keep=1)

    def observed(self) -> Observed:
        return {"logits": self.llama(self.tokens, use_cache=True).logits}


class DecodingStep(StaticHuggingFaceStep):
    """The last token of a static cache, again and again."""

    def __init__(self, model: Model, sizes: Sizes, attention: str) -> None:
        super().__init__(model, StepConfiguration(1, sizes.context), attention)

    def observed(self) -> Observed:
        self.tokens.zero_()
        return {"logits": self()}


class DecodingReplay(Replay):
    """The same as a CUDA graph."""

    step: DecodingStep

    def __init__(self, model: Model, sizes: Sizes, attention: str) -> None:
        super().__init__(DecodingStep(model, sizes, attention))

    def observed(self) -> Observed:
        self.step.tokens.zero_()
        return {"logits": self().clone()}


class Forced:
    """A processor of logits that lets `generate` choose given tokens alone."""

    def __init__(self, tokens: torch.Tensor, prompt: int) -> None:
        self.tokens, self.prompt = tokens, prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.tokens[0, input_ids.shape[1] - self.prompt]] = 0
        return forced


class Generation:
    """generate() behind a prompt, greedily, with the cache that it makes by itself."""

    def __init__(self, model: Model, sizes: Sizes, attention: str) -> None:
        self.llama = hugging_face_model(model, sizes.context, attention)
        self.llama.generation_config.eos_token_id = None  # it ends by the number of tokens alone
        device = str(model.head.device)
        both = tokens_of(model.shape, sizes.prompt + sizes.generated, device)
        self.prompt, self.forced = both.split((sizes.prompt, sizes.generated), 1)
        self.generate = functools.partial(
            self.llama.generate,
            self.prompt,
            attention_mask=torch.ones_like(self.prompt),
            max_new_tokens=sizes.generated,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
        )

    def __call__(self) -> Any:
        return self.generate()

    def observed(self) -> Observed:
        """Logits of every step, behind tokens that do not depend on them."""
        made = self.generate(
            logits_processor=[Forced(self.forced, self.prompt.shape[1])],
            output_logits=True,
            return_dict_in_generate=True,
        )
        if not torch.equal(made.sequences[:, self.prompt.shape[1] :], self.forced):
            raise RuntimeError("generate() chose other tokens than it was left")
        return {"logits": torch.stack(made.logits)}


class Training(training.TrainingStep):
    def __init__(self, shape: training.TrainingShape, device: str, attention: str) -> None:
        super().__init__(shape, device)
        self.model.set_attn_implementation(attention)

    def observed(self) -> Observed:
        """Before the first update, after which weights differ."""
        with torch.no_grad():
            logits = self.model(self.tokens[:1]).logits
        self.forward_and_backward()
        gradients = self.gradients()
        self.optimizer.zero_grad(set_to_none=True)
        return {"logits": logits, **gradients}


def all_cases(sizes: Sizes, device: str) -> list[Case]:
    """Those that may leave a GPU's stream in disorder are the last. The model of the first four is made once."""

    @functools.cache
    def llama() -> Model:
        return make_llama(sizes, device)

    def of_llama(kind: Callable[[Model, Sizes, str], Work]) -> Callable[[str], Work]:
        return lambda attention: kind(llama(), sizes, attention)

    def case(name: str, label: str, kind: Callable[[Model, Sizes, str], Work]) -> Case:
        return Case(name, label, of_llama(kind), of_llama(kind))

    def train(attention: str) -> Work:
        return Training(sizes.gpt2, device, attention)

    layers, gpt2 = sizes.llama.layers, sizes.gpt2
    step = f"Llama, {layers} layers, decoding step, static cache of {sizes.context}"
    cases = [
        case("prefill", f"Llama, {layers} layers, prefill of {sizes.context}", Prefill),
        case("decode", step, DecodingStep),
        case("generate", f"Llama, {layers} layers, generate() {sizes.generated} behind {sizes.prompt}", Generation),
        Case(
            "train",
            f"GPT-2, {gpt2.layers} layers, training step of {gpt2.batch} x {gpt2.seqlen}",
            train,
            train,
            has_gradients=True,
        ),
    ]
    if device == "cuda":
        cases.append(Case("graph", f"{step}, CUDA graph", of_llama(DecodingReplay), of_llama(DecodingStep)))
    return cases
