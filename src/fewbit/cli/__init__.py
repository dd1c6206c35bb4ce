"""The `fewbit` command. It is thin: it reads options, calls the library and prints.

To add a command: write it as a function in a module of this package, and put a line in TABLE. A command imports what it
needs when it runs, so that others start quickly.
"""

from __future__ import annotations

import click

from .group import Commands

TABLE = {
    "adapters": ("adapters.adapters", "List versions of an adapter that learned from feedback, or go back to one."),
    "batch": ("batch.batch", "Answer the requests in a file, in OpenAI's batch format."),
    "bench": ("bench.bench", "Speed beside the machine's own limits."),
    "calibrate": ("calibrate.calibrate", "Measure which inputs of each matrix matter, while a model reads a text."),
    "chat": ("run.chat", "Talk with a model."),
    "completion": ("completion.completion", "Let the shell complete commands, options and models on Tab."),
    "doctor": ("doctor.doctor", "What this machine offers, and what fewbit chose."),
    "embed": ("embed.embed", "Embed texts: print their similarities or their vectors."),
    "eval": ("evaluate.evaluate", "Perplexity of a model, KL divergence from a reference, multiple choice."),
    "formats": ("formats.formats", "The formats: bits a weight, block and group sizes."),
    "inspect": ("inspect.inspect", "What a model file holds: metadata, tensors, formats and sizes."),
    "list": ("models.list_models", "List built-in models and those that were fetched."),
    "merge": ("merge.merge", "Write a model with a LoRA adapter merged into its weights, as a GGUF file."),
    "plan": ("plan.plan", "How many replicas a number of clients needs, and what they get."),
    "ps": ("ps.ps", "What a server runs: its models, requests and speed."),
    "pull": ("models.pull", "Fetch a model and print its path."),
    "quantize": ("quantize.quantize", "Write a model in other formats, as a GGUF file."),
    "report": ("report.report", "Write an HTML page about quantized models."),
    "rm": ("models.remove", "Remove models that were fetched."),
    "run": ("run.run", "Answer one prompt, or begin a conversation."),
    "serve": ("serve.serve", "Serve models to OpenAI's clients and others, over HTTP."),
    "show": ("show.show", "What a model is and can do: context, formats, sampling, license, chat template."),
    "tune": ("tune.tune", "Train a LoRA adapter on a model whose weights stay packed."),
    "table": ("formats.table", "Quantize a Gaussian matrix in every format; print bits, error and speed."),
}


@click.group(cls=Commands, table=TABLE, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="fewbit", prog_name="fewbit")
def main() -> None:
    """Language models with their weights kept in few bits.

    \b
    Examples:
      fewbit run "Why is the sky blue?"   an answer from the default model
      fewbit run qwen3:4b                 a conversation
      fewbit serve model.gguf             a server for OpenAI's clients
      fewbit batch a.gguf in.jsonl -o o.jsonl  answers to a file of requests
      fewbit embed model.gguf "a" "b"     similarities of texts
      fewbit pull --list                  the models that have a name
      fewbit list                         the models that are here
      fewbit bench model.gguf             tokens/s beside the machine's limits
      fewbit quantize model/ -o q4.gguf   a smaller model
      fewbit tune model.gguf data.jsonl -o adapter/
                                          a LoRA adapter for a model
      fewbit merge model/ adapter/ -o m.gguf
                                          a model with an adapter merged into it
      fewbit eval model.gguf --text a.txt perplexity over a text
      fewbit show model.gguf              what a model is and can do
      fewbit inspect model.gguf           what a file holds
      fewbit doctor                       what this machine can do
      fewbit formats                      the formats and their sizes
      fewbit table --format q4_k          bits, error and speed of a format

    \b
    Environment:
      FEWBIT_CACHE    folder for fetched models [~/.cache/fewbit]
      FEWBIT_OFFLINE  1: fetch nothing, use what is here
      FEWBIT_THREADS  threads to use [all usable cores]
      FEWBIT_API_KEY  key for a server (fewbit ps, fewbit run --server)
      FEWBIT_ISA      instruction set to use [the best; see fewbit doctor]
    """
