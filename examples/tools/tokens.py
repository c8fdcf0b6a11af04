#!/usr/bin/env python3
"""tokens.py - makes the file of tokens from which train_gpt learns (--tokens), with the package tokenizers.

  tokens.py MODEL OUTPUT FILE...            each file is a document
  tokens.py MODEL OUTPUT --lines FILE...    each line is a document

MODEL is a folder with tokenizer.json and, for the separator, config.json.  OUTPUT is a name in .u16 or .u32: tokens of 2 or
4 bytes, the lowest byte first.  Each document ends with the token eos_token_id, or with --separator N.

  pip install tokenizers
  python3 examples/tools/tokens.py models/Qwen2-0.5B tokens.u32 *.txt
  train_gpt --model models/Qwen2-0.5B --tokens tokens.u32 --documents 64 ...
"""
import array
import json
import os
import sys


def fail(text):
    print(f"tokens.py: {text}", file=sys.stderr)
    sys.exit(2)


def parse(arguments):
    separator, lines, names = None, False, []
    while arguments:
        word = arguments.pop(0)
        if word == "--lines":
            lines = True
        elif word == "--separator":
            if not arguments or not arguments[0].isdigit():
                fail("--separator: a token, such as 2, would work")
            separator = int(arguments.pop(0))
        elif word.startswith("--"):
            fail(f"{word}: unknown; --lines and --separator are known")
        else:
            names.append(word)
    if len(names) < 3:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    return names[0], names[1], names[2:], lines, separator


def end_token(model):
    """eos_token_id of config.json, the first if there are several."""
    try:
        with open(os.path.join(model, "config.json")) as file:
            token = json.load(file).get("eos_token_id")
    except (OSError, ValueError) as e:
        fail(f"{model}/config.json: {e}; --separator N would do without")
    token = token[0] if isinstance(token, list) and token else token
    if not isinstance(token, int):
        fail(f"{model}/config.json: eos_token_id is missing; --separator N would work")
    return token


def documents(files, lines):
    for name in files:
        with open(name, encoding="utf-8", errors="replace") as file:
            yield from (line.rstrip("\n") for line in file) if lines else (file.read(),)


def main(arguments):
    model, output, files, lines, separator = parse(arguments)
    width = {".u16": 2, ".u32": 4}.get(output[-4:]) or fail(f"{output}: a name that ends in .u16 or .u32 would work")
    try:
        import tokenizers
    except ImportError:
        fail("the package tokenizers is missing; pip install tokenizers")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(os.path.join(model, "tokenizer.json"))
    except Exception as e:
        fail(f"{model}/tokenizer.json: {e}")
    separator = end_token(model) if separator is None else separator
    n_documents = n_tokens = 0
    code = "H" if width == 2 else next(c for c in "IL" if array.array(c).itemsize == 4)

    # Written aside, and renamed when it is complete.
    aside = f"{output}.part-{os.getpid()}"
    try:
        with open(aside, "xb") as file:
            for text in documents(files, lines):
                tokens = tokenizer.encode(text, add_special_tokens=False).ids + [separator]
                if max(tokens) >> 8 * width:
                    fail(f"{output}: token {max(tokens)} has more than {width} bytes; a name in .u32 would work")
                numbers = array.array(code, tokens)
                if sys.byteorder == "big":
                    numbers.byteswap()
                numbers.tofile(file)
                n_documents += 1
                n_tokens += len(tokens)
        os.rename(aside, output)
    except OSError as e:
        fail(e)
    finally:
        if os.path.exists(aside):
            os.unlink(aside)
    print(f"{output}: {n_tokens} tokens in {n_documents} documents, each of which ends with {separator}")


if __name__ == "__main__":
    main(sys.argv[1:])
