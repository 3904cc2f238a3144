"""Tokenizers: text to ids and back, and an identity by which two are compared."""

from beam_jobs.tokenizers.bytes import ByteTokenizer
from beam_jobs.tokenizers.chars import CharacterSet, CharTokenizer
from beam_jobs.tokenizers.hugging_face import HuggingFaceTokenizer
from beam_jobs.tokenizers.open_tokenizer import TOKENIZERS, TokenizerSpec, dataset_tokenizer, open_tokenizer
from beam_jobs.tokenizers.sentencepiece import SentencePieceTokenizer
from beam_jobs.tokenizers.tokenizer import Ids, Tokenizer, TokenizerIdentity, Utf8Tokenizer, check_ids

__all__ = [
    "TOKENIZERS",
    "ByteTokenizer",
    "CharTokenizer",
    "CharacterSet",
    "HuggingFaceTokenizer",
    "Ids",
    "SentencePieceTokenizer",
    "Tokenizer",
    "TokenizerIdentity",
    "TokenizerSpec",
    "Utf8Tokenizer",
    "check_ids",
    "dataset_tokenizer",
    "open_tokenizer",
]
