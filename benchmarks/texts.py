"""Text models of true size through the whole way: made by transformers, imported, merged by TIES, scored, exported.

    python -m benchmarks.texts --family t5 --folder /tmp/texts

Weights are random, of the published shapes (BERT-base, T5-base), and are made here. Import and merge run in processes
of their own, whose greatest resident memory is printed; then the exported model is loaded by transformers, and its
logits are compared with the engine's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.merging import peak_memory, run_apart

EXPERTS = ("nouns", "answers")
LENGTH = 12


def make(family: str, folder: Path) -> None:
    """Write a base and experts of the published size with texts for each; fine-tuning moves by a hundredth."""
    import torch
    from transformers import (
        BertConfig,
        BertForPreTraining,
        BertForSequenceClassification,
        T5Config,
        T5ForConditionalGeneration,
    )

    from tests.made_text_models import NOUNS, moved, save, texts

    torch.manual_seed(0)
    if family == "bert":
        base: Any = BertForPreTraining(BertConfig())
    else:
        base = T5ForConditionalGeneration(
            T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12, eos_token_id=2, decoder_start_token_id=0)
        )
    pairs = family == "bert"
    save(base, folder / "base", pairs=pairs)
    for number, name in enumerate(EXPERTS):
        expert = base
        if family == "bert":
            expert = BertForSequenceClassification(BertConfig(num_labels=len(NOUNS)))
            expert.bert.load_state_dict(base.bert.state_dict())
        save(moved(expert, number, 0.002), folder / name, pairs=pairs)
        texts(folder / f"{name}.jsonl", NOUNS, 12, numbers=family == "bert", seed=number)


def bring(folder: Path) -> dict[str, float]:
    """Import; returns seconds and peak memory."""
    from engine.zoo.importing.convert import import_zoo
    from engine.zoo.importing.request import parse_request

    started = time.perf_counter()
    experts = [{"name": name, "path": str(folder / name)} for name in EXPERTS]
    data = {name: str(folder / f"{name}.jsonl") for name in EXPERTS}
    asked = {"base": str(folder / "base"), "experts": experts, "data": data, "name": "true_size", "length": LENGTH}
    import_zoo(parse_request({**asked, "out": str(folder / "zoo")}), lambda fraction, message="": None)
    return {"seconds": time.perf_counter() - started, "peak_gib": peak_memory()}


def merge(folder: Path) -> dict[str, float]:
    """Merge by TIES and write the model; returns seconds and peak memory."""
    from engine.merging.apply import merge as merged_by
    from engine.pipeline.run.weights_only import WeightsOnly
    from engine.recipe import MethodCall
    from engine.weights import LazyTaskVectors, write_weights
    from engine.zoo.folder import Zoo

    started = time.perf_counter()
    zoo = Zoo.open(str(folder / "zoo"))
    base, experts = zoo.weights("base"), {name: zoo.weights(name) for name in EXPERTS}
    found = merged_by(base, LazyTaskVectors(base, experts), (), MethodCall(method="ties"), WeightsOnly(EXPERTS))
    write_weights(folder / "merged.safetensors", found.weights)
    return {"seconds": time.perf_counter() - started, "peak_gib": peak_memory()}


def export(folder: Path) -> dict[str, float]:
    """Score the merge by the engine, export it, and compare with what transformers computes of the export."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

    from engine.pipeline.export.texts import write_text_model
    from engine.weights import encoder_part, open_weights
    from engine.zoo.encoders.backbone import architecture, load_encoder
    from engine.zoo.folder import Zoo

    started = time.perf_counter()
    zoo, task = Zoo.open(str(folder / "zoo")), EXPERTS[0]
    weights, config = encoder_part(open_weights(folder / "merged.safetensors")), architecture(zoo.folder, zoo.manifest)
    samples = torch.as_tensor(zoo.data[task].samples("test"))
    with torch.no_grad():
        ours = zoo.heads([task])[0][task].logits(load_encoder(config, weights)(samples)).float()
        (folder / "out").mkdir()
        write_text_model(folder / "out", weights, zoo, config, task, None)
        ids, mask = samples[:, 0], (samples[:, 0] != 0).long()
        if config["model_type"] == "bert":
            theirs = AutoModelForSequenceClassification.from_pretrained(folder / "out").eval()
            logits = theirs(input_ids=ids, attention_mask=mask, token_type_ids=samples[:, 1]).logits
        else:
            theirs, columns = AutoModelForSeq2SeqLM.from_pretrained(folder / "out").eval(), []
            row = samples[0, 1]
            for answer in row[: int((row == 2).nonzero()[-1]) + 1].reshape(-1, 2):
                labels = answer.expand(len(ids), -1).contiguous()
                logs = theirs(input_ids=ids, attention_mask=mask, labels=labels).logits.log_softmax(-1)
                columns.append(logs.gather(2, labels[:, :, None]).sum((1, 2)))
            logits = torch.stack(columns, dim=1)
    labels = torch.as_tensor(zoo.data[task].labels("test"))
    return {
        "seconds": time.perf_counter() - started,
        "largest_difference": float((ours - logits).abs().max()),
        "accuracy": 100 * float((ours.argmax(1) == labels).double().mean()),
    }


def main() -> None:
    """Run every part in a process of its own and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=("bert", "t5"), default="bert")
    parser.add_argument("--folder", type=Path, required=True, help="an empty folder")
    parser.add_argument("--one", choices=("make", "import", "merge", "export"), help="one part, in this process")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    parts = {"import": bring, "merge": merge, "export": export}
    if given.one == "make":
        make(given.family, given.folder)
        print(json.dumps({"peak_gib": peak_memory()}))
    elif given.one:
        print(json.dumps(parts[given.one](given.folder)))
    else:
        for part in ("make", *parts):
            command = [sys.executable, "-m", "benchmarks.texts", "--family", given.family, "--one", part]
            print(part, json.dumps(run_apart([*command, "--folder", str(given.folder)], limit=12)))


if __name__ == "__main__":
    main()
