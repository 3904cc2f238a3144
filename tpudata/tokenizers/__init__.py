"""Tokenizers: text to ids and back, and an identity that tells two tokenizers apart."""

from tpudata.tokenizers.bytes import ByteTokenizer
from tpudata.tokenizers.chars import CharacterSet, CharTokenizer
from tpudata.tokenizers.hugging_face import HuggingFaceTokenizer
from tpudata.tokenizers.open_tokenizer import TOKENIZERS, TokenizerSpec, dataset_tokenizer, open_tokenizer
from tpudata.tokenizers.sentencepiece import SentencePieceTokenizer
from tpudata.tokenizers.tokenizer import Ids, Tokenizer, TokenizerIdentity, Utf8Tokenizer, check_ids

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
