#!/usr/bin/env python3
"""Writes small vocabularies of every kind that crates/inputs reads, and what the package `tokenizers` makes of some texts with them.

    python3 -m pip install tokenizers sentencepiece protobuf
    python3 make.py            # writes *.json beside itself
    python3 make.py N FOLDER   # also N random texts for each, into FOLDER, for PANOPLY_TOKENIZER_TEXTS, with vocabularies
                               # whose table of characters is SentencePiece's own, which is too large to keep
"""
import json
import os
import random
import sys
import tempfile

import sentencepiece
import sentencepiece.sentencepiece_model_pb2 as sentencepiece_model
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


# What a table of characters replaces: code points, a tab, code points.
RULES = ["FB01\t66 69", "FB02\t66 6C", "BD\t31 2F 32", "2167\t56 49 49 49", "A0\t20", "9\t20", "A\t20", "200B\t20", "AD\t",
         "65 301\tE9", "41 30A\tC5", "24D0\t61", "3000\t20", "915 93F\t915", "2026\t2E 2E 2E"]


def charsmap(rules=RULES):
    """A table as SentencePiece compiles it: of these rules, or its own `nmt_nfkc`."""
    with tempfile.TemporaryDirectory() as folder:
        path = lambda name: os.path.join(folder, name)
        with open(path("rules.tsv"), "w") as file:
            file.write("\n".join(rules or []) + "\n")
        options = {"normalization_rule_tsv": path("rules.tsv")} if rules else {"normalization_rule_name": "nmt_nfkc"}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_prefix=path("made"), vocab_size=100,
                                                 hard_vocab_limit=False, minloglevel=2, **options)
        model = sentencepiece_model.ModelProto()
        with open(path("made.model"), "rb") as file:
            model.ParseFromString(file.read())
        return model.normalizer_spec.precompiled_charsmap


def unigram(normalizer, split, special, size, **options):
    """A Unigram vocabulary that was trained, with its model made again where it needs options that a trainer does not have."""
    made = Tokenizer(models.Unigram())
    made.normalizer, made.pre_tokenizer = normalizer, split
    trainer = trainers.UnigramTrainer(vocab_size=size, special_tokens=special, unk_token="<unk>", show_progress=False)
    made.train_from_iterator(CORPUS, trainer)
    if options:
        pieces = [(piece, score) for piece, score in json.loads(made.to_str())["model"]["vocab"]]
        made.model = models.Unigram(pieces, special.index("<unk>"), **options)
    return made


def xlm_r():
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    made = unigram(normalizers.Precompiled(charsmap(TABLE)), pre_tokenizers.Metaspace(), special, 260)
    made.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return made


def t5():
    normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap(TABLE)), normalizers.Strip(left=False),
                                       normalizers.Replace(Regex(" {2,}"), "▁")])
    split = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    made = unigram(normalizer, split, ["<pad>", "</s>", "<unk>"] + bytes_, 480, byte_fallback=True)
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return made


def albert():
    normalizer = normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(),
                                       normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Precompiled(charsmap(TABLE))])
    split = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    made = unigram(normalizer, split, ["<pad>", "<unk>", "[CLS]", "[SEP]"], 220)
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return made


def nmt():
    normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    return unigram(normalizer, pre_tokenizers.Metaspace(prepend_scheme="first"), ["<unk>", "<s>"], 200)


def noise(count):
    pieces = TEXTS + CORPUS + list("abcXYZ019 '’\n\t.,!?—éßüÅ中日ありकि😀\u0301\u00a0½Ⅷªⓐ") + ["<s>", "</s>", "<mask>", " the", "n't"]
    return ["".join(random.Random(seed).choices(pieces, k=1 + seed % 24)) for seed in range(count)]


KINDS = {"byte-level": byte_level, "llama": llama, "llama3": llama3, "clip": clip, "marked": marked, "bert": bert,
         "xlm-r": xlm_r, "t5": t5, "albert": albert, "nmt": nmt}


def write(folder, name, tokenizer, texts):
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, name + ".json"), pretty=False)
    rows = [{"text": text, "ids": tokenizer.encode(text).ids} for text in texts]
    with open(os.path.join(folder, name + ".answers.json"), "w") as file:
        json.dump(rows, file, ensure_ascii=True, separators=(",", ":"))


for name, make in KINDS.items():
    TABLE = RULES
    write(HERE, name, make(), TEXTS)
    if len(sys.argv) > 2:
        TABLE = None
        write(sys.argv[2], name, make(), noise(int(sys.argv[1])))
