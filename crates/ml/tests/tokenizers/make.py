#!/usr/bin/env python3
"""Writes small vocabularies of every kind that crates/ml reads, and what the package `tokenizers` makes of some texts with them.

    python3 -m pip install tokenizers
    python3 make.py            # writes *.json beside itself
    python3 make.py N FOLDER   # also N random texts for each, into FOLDER, for PANOPLY_TOKENIZER_TEXTS
"""
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = ["The quick brown fox jumps over the lazy dog, doesn't it? It's 12345 times faster than 678 others!",
          "Der Zug nach Köln fährt um 9:30 Uhr; où est la gare? naïve café façade.", "中文字符 和 русский текст смешаны вместе.",
          "def main(args):\n    return [x ** 2 for x in range(10)]\n\n", "  leading spaces and\ttabs   and trailing  "] * 4
TEXTS = ["", " ", "Hello, world!", "It's the quick brown fox; they'll DON'T we've", "naïve café — façade", "中文 тест 12345678 ½ Ⅷ ⓐ",
         "a\n\n  b\t\tc   ", "emoji 👩‍🚀 and \u200b zero width", "<s> a </s>b<mask> c", "[CLS] x [SEP]", "  two  spaces  ", "İstanbul ﬁn ﬂat Å",
         "x" * 120, "Ünïcödé " * 12, "हिन्दी भाषा", "\u0000\ufffd\u00ad control", "semi;colon،arabic", "a<s>", "under_score __init__"]
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def train(tokenizer, special, size, **options):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, show_progress=False, **options)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_level():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    train(made, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], 380, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return made


def llama():
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    train(made, special, 420)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return made


def llama3():
    made = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    train(made, ["<|begin|>", "<s>"], 380, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    template = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return made


def clip():
    made = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", continuing_subword_prefix=""))
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    split = pre_tokenizers.Split(Regex(CLIP), "removed", invert=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    train(made, ["<unk>", "<start>", "<end>"], 800, initial_alphabet=alphabet, end_of_word_suffix="</w>")
    made.post_processor = processors.RobertaProcessing(("<end>", 2), ("<start>", 1), trim_offsets=False, add_prefix_space=False)
    return made


def marked():
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip()])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Metaspace(prepend_scheme="first")])
    train(made, ["<unk>", "<s>"], 250)
    return made


def bert():
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    single = "[CLS] $A [SEP]"
    made.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return made


def noise(count):
    pieces = TEXTS + CORPUS + list("abcXYZ019 '’\n\t.,!?—éßüÅ中日ありकि😀\u0301\u00a0½Ⅷªⓐ") + ["<s>", "</s>", "<mask>", " the", "n't"]
    return ["".join(random.Random(seed).choices(pieces, k=1 + seed % 24)) for seed in range(count)]


KINDS = {"byte-level": byte_level, "llama": llama, "llama3": llama3, "clip": clip, "marked": marked, "bert": bert}
for name, make in KINDS.items():
    tokenizer = make()
    rows = lambda texts: [{"text": text, "ids": tokenizer.encode(text).ids} for text in texts]
    tokenizer.save(os.path.join(HERE, name + ".json"), pretty=False)
    with open(os.path.join(HERE, name + ".answers.json"), "w") as file:
        json.dump(rows(TEXTS), file, ensure_ascii=True, separators=(",", ":"))
    if len(sys.argv) > 2:
        os.makedirs(sys.argv[2], exist_ok=True)
        with open(os.path.join(sys.argv[2], name + ".answers.json"), "w") as file:
            json.dump(rows(noise(int(sys.argv[1]))), file)
