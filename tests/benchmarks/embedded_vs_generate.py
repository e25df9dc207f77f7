"""Tokens per CPU-second of the embedded engine against `transformers.generate`, on models of the demo's size.

Run by `python -m tests.benchmarks.embedded_vs_generate [--repeats 9] [--threads 1]`. Both sides sample the same
prompts, the same number of sequences in one batch, at temperature 1; the runs alternate. Only tokens a caller gets are
counted (up to and with the end token). The engine returns log-probabilities and text, `generate` only ids. "cut" is the
case in which no row ends by itself, "ending" the one in which a row ends with probability 1/25 at each token.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from server.rollouts.embedded import EmbeddedEngine
from server.rollouts.engine import SamplingParams, TokenPrompt
from server.rollouts.tokenizer import MemberTokenizer

PAD, BEGIN, END = 0, 1, 2
PROMPTS, SAMPLES, NEW_TOKENS = 32, 8, 60
ENDING = 1 / 25


def tokenizer(size: int) -> MemberTokenizer:
    """One character a token, `size` tokens in all."""
    words = ["<pad>", "<bos>", "<eos>", *(chr(0x4E00 + i) for i in range(size - 3))]
    backend = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    backend.decoder = decoders.Fuse()
    return MemberTokenizer(
        PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")
    )


def model(family: str, vocabulary: int, ending: float) -> PreTrainedModel:
    """A random model of the demo's shape, whose output bias makes rows end at the rate `ending`."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": vocabulary,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "pad_token_id": PAD,
    }
    if family == "qwen3":
        config = Qwen3Config(**shape, intermediate_size=192, num_key_value_heads=2, head_dim=16)
        net: PreTrainedModel = Qwen3ForCausalLM(config)
    elif family == "llama":
        net = LlamaForCausalLM(LlamaConfig(**shape, intermediate_size=192, num_key_value_heads=4))
    else:
        net = GPTNeoXForCausalLM(GPTNeoXConfig(**shape, intermediate_size=256, rotary_pct=0.5))
    head = torch.nn.Linear(64, vocabulary)
    torch.nn.init.normal_(head.weight, std=0.02)
    torch.nn.init.zeros_(head.bias)
    with torch.no_grad():
        head.bias[END] = math.log(ending / (1 - ending) * (vocabulary - 1)) if ending else -30.0
    net.set_output_embeddings(head)
    return net.eval()


def prompts(vocabulary: int) -> list[TokenPrompt]:
    """Random prompts of 8 to 12 tokens."""
    random = np.random.default_rng(1)
    return [
        TokenPrompt(key, (BEGIN, *random.integers(3, vocabulary, size=random.integers(7, 12)).tolist()))
        for key in range(PROMPTS)
    ]


def run_engine(engine: EmbeddedEngine, batch: list[TokenPrompt], step: int) -> tuple[int, float]:
    """(tokens, CPU-seconds)."""
    params = SamplingParams(n=SAMPLES, max_new_tokens=NEW_TOKENS, step=step)
    start = time.process_time()
    groups = engine.sample(batch, params)
    spent = time.process_time() - start
    return sum(len(sample.ids) for group in groups for sample in group), spent


def run_generate(net: PreTrainedModel, batch: list[TokenPrompt], step: int) -> tuple[int, float]:
    """(tokens, CPU-seconds)."""
    torch.manual_seed(step)
    start = time.process_time()
    width = max(len(prompt.ids) for prompt in batch)
    ids = torch.tensor([[PAD] * (width - len(prompt.ids)) + list(prompt.ids) for prompt in batch])
    mask = torch.tensor([[0] * (width - len(prompt.ids)) + [1] * len(prompt.ids) for prompt in batch])
    with torch.inference_mode():
        out = net.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            num_return_sequences=SAMPLES,
            max_new_tokens=NEW_TOKENS,
            pad_token_id=PAD,
            eos_token_id=END,
        )
    spent = time.process_time() - start
    ended = out[:, width:] == END
    before = (ended.cumsum(1) - ended.long()) == 0
    return int(before.sum()), spent


def compare(family: str, vocabulary: int, ending: float, repeats: int) -> dict[str, float | str]:
    """Median rates of both sides over alternating runs."""
    engine = EmbeddedEngine(model(family, vocabulary, ending), tokenizer(vocabulary), max_batch_rows=PROMPTS * SAMPLES)
    net, batch = model(family, vocabulary, ending), prompts(vocabulary)
    rates: dict[str, list[float]] = {"engine": [], "generate": []}
    for step in range(repeats + 1):
        for side, (tokens, spent) in (
            ("engine", run_engine(engine, batch, step)),
            ("generate", run_generate(net, batch, step)),
        ):
            if step:  # the first round warms up
                rates[side].append(tokens / spent)
    own, other = statistics.median(rates["engine"]), statistics.median(rates["generate"])
    return {
        "family": family,
        "vocabulary": vocabulary,
        "rows": "ending" if ending else "cut",
        "engine_tokens_per_cpu_s": round(own),
        "generate_tokens_per_cpu_s": round(other),
        "ratio": round(own / other, 3),
    }


def main() -> None:
    """Print the machine, a line per model, and everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    about = {
        "machine": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": arguments.threads,
        "repeats": arguments.repeats,
        "rows": PROMPTS * SAMPLES,
    }
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    results = []
    for ending in (0.0, ENDING):
        for family, vocabulary in (("qwen3", 40), ("llama", 101), ("neox", 108)):
            result = compare(family, vocabulary, ending, arguments.repeats)
            results.append(result)
            print(
                f"{family:6} V={vocabulary:<4} {result['rows']:7} engine {result['engine_tokens_per_cpu_s']:>7} tok/s  "
                f"generate {result['generate_tokens_per_cpu_s']:>7} tok/s  ratio {result['ratio']}",
                flush=True,
            )
    print(json.dumps({**about, "results": results}))


if __name__ == "__main__":
    main()
