"""A fine-tuning run from its images to its results: `run_finetuning` is the life of a run."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from vitft.config.run import Config
from vitft.data.image_table import Images
from vitft.metrics.results import Results, RunResults
from vitft.models.pretrained.catalog import absolute_name
from vitft.report.notebook import result_card
from vitft.system.errors import RunError
from vitft.training.budget import choose_layers, try_other_starts
from vitft.training.finish import evaluate, write_best, write_final
from vitft.training.record import Fitted, open_run, status_recorded
from vitft.training.reports import write_reports
from vitft.training.runtime import Runtime
from vitft.training.setup import (
    Start,
    extract_features,
    first_inputs,
    list_images,
    load_model,
    next_inputs,
    split_images,
    with_soft_targets,
)
from vitft.training.stages import StepStage, solve_head_stage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Result:
    """Outcome of a run: directory, metrics and exit status."""

    run: Path
    figures: RunResults
    """Contents of eval.json; empty if the run was stopped before anything was measured."""
    status: str = "finished"
    """Exit status as in environment.json: finished, interrupted, terminated or out of time."""
    exit_code: int = 0

    @property
    def results(self) -> Results:
        """The numbers of the run: `headline` is the one to quote; empty if nothing was measured."""
        return replace(Results.of(self.figures or None), name=self.run.name)

    @property
    def interrupted(self) -> bool:
        """Whether the run stopped before training was complete."""
        return self.status != "finished"

    def __repr__(self) -> str:
        one = self.results.headline
        value = f"{one.measure.replace(' ', '_')}={one.value}" if one else "accuracy=None"
        return f"Result(run='{self.run}', status={self.status!r}, {value})"

    def _repr_html_(self) -> str | None:
        try:
            return result_card(self.run)
        except RunError:  # deleted or damaged since
            return None


def run_finetuning(
    config: Config,
    *,
    out: Path,
    folder: Images | None = None,
    resume: bool = False,
    max_seconds: float = 0.0,
) -> Result:
    """Fine-tune pretrained weights on labelled images and write the run directory `out`.

    On a signal (Ctrl-C, SIGTERM, SIGUSR1, SIGHUP) or at the time limit, the training state and any
    best weights are saved, so that the run can be resumed. Under torchrun, every process calls this
    function: each computes its share, they stop together, and only the first writes the run.

    Random number generators, thread counts and signal handlers are restored at the end, but malloc
    settings are not (see `system.cores`).

    Args:
        config: The settings; for a resumed run, those in its directory.
        out: The run directory to create or resume.
        folder: The images, if they have been listed before (`check_request`).
        resume: Whether to continue a run that was stopped or killed.
        max_seconds: Time limit in seconds; 0 for no limit.

    Raises:
        DataError: The data folder or its classes cannot be used, or too many images are unreadable.
        WeightsError: The weights cannot be found, read or adapted.
        UsageError: The device, a tracker or a combination of settings cannot be used.
        RunError: `out` or the cache cannot be written, or `out` cannot be resumed.
        LockedError: Another process is writing to `out`.
        DivergedError: The loss or the features are not finite.
        ResourceError: Memory or disk space ran out, or a process was lost.
    """
    with Runtime.enter(config, out, resume=resume, max_seconds=max_seconds) as runtime:
        # List the images, then load the model, cut where its frozen layers end. Both fill in
        # settings that were left open: the path of the data, the learning rates of the layers
        folder, config = list_images(config, runtime, folder)
        pipeline, report, config = load_model(folder, config, runtime)

        # One pass over all images caches the features of the frozen layers, if there are any, and
        # on request fingerprints, by which the split keeps near-copies together
        images, features, fingerprints = extract_features(pipeline, folder, config, runtime)
        data = split_images(images, folder.rows, fingerprints, pipeline, config, runtime)
        if config.train.teacher:
            data = with_soft_targets(data, config)
        inputs = first_inputs(data, pipeline, features, config)
        weights = replace(config.weights, name=absolute_name(config.weights.name))
        config = replace(config, weights=weights)  # `latest` may change
        start = Start(config=config, pipeline=pipeline, report=report, inputs=inputs)
        start = try_other_starts(start, runtime)  # given a budget: e.g. a larger input size

        with open_run(out, start, runtime) as run:
            fitted = Fitted(start, run, runtime)
            fitted.resume()  # finds a saved state; the stage it belongs to loads it
            with status_recorded(fitted):  # a stop (signal, time limit) skips to its end
                try:
                    fit(fitted)
                finally:  # after a stop or an error, too
                    write_best(fitted)
                write_final(fitted, evaluate(fitted))  # the accuracy that `vitft predict` will have
                write_reports(fitted)  # label errors, duplicates, statistics of the features
            if runtime.status != "finished" and not fitted.is_reported:  # on what there is
                write_reports(fitted, complete=False)
            return Result(
                run=run.path,
                figures=fitted.results,
                status=runtime.status,
                exit_code=runtime.exit_code,
            )


def fit(fitted: Fitted) -> None:
    """Solve a head or take optimiser steps, stage by stage, from the start or the saved state.

    After a solved head, a time budget is spent on trials that choose further layers to train.
    """
    best, saved, number = fitted.best, fitted.saved, 0
    first = saved.facts["stage"] if saved else 0  # earlier stages are finished
    while number < len(fitted.config.train.stages):  # `choose_layers` may add a stage
        config, stage = fitted.config, fitted.config.train.stages[number]
        state = saved if number == first else None  # what this stage continues from
        if number > first:  # it starts from the best weights of the previous stage
            best.restore()
            best.weights = {}  # to save memory: the model has them
            best.facts["since"] = 0
        if number:
            log.info(
                f"next stage: --train {stage}, starting from the weights of the previous stage"
            )
            fitted.inputs = next_inputs(best.model, fitted.inputs, config, stage)
        if number > first:
            best.weights = best.copy_weights()  # this stage trains more tensors
        if number >= first and config.solves(stage):
            # L-BFGS on cached features; cross-validation chooses the penalty and scores the images
            solved = solve_head_stage(fitted)
            if config.train.budget:
                choose_layers(fitted, solved)
        elif number >= first:
            # Epochs of batches: after each, validate and keep the best weights. The state is saved
            # at intervals, and the optimiser restored from it
            if state:  # for `write_best`, if a stop comes before the stage has loaded it
                best.load(state.facts["best"], state.best)
            StepStage(fitted, number).run(state)
        number += 1
