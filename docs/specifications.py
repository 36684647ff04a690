"""Write docs/specifications.md, what the specifications say and which test shows it: `python docs/specifications.py`.

`LIST` has a heading for each specification and a line for each statement of what the system does: the statement, the
test that runs it on an example that is not the specification's own (below `tests/`), and, where it is not met or only
in part, why. A line without a test is not met.
"""

# ruff: noqa: E501  (a statement is a line)

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).with_name("specifications.md")
LIST = """
# Virtual hardware layer
Parametric costs without hardware, compute-bound or memory-bound by the roofline | machine/platform/test_platform.py::test_a_task_lasts_as_the_roofline_says
Several compute devices, GPUs and CPUs | machine/platform/test_scenario.py::test_tasks_arrive_wait_for_others_and_share
Whether compute or memory limits an operation is said | machine/platform/test_platform.py::test_a_task_that_others_slow_down_is_bound_by_memory
Memories that belong to no device, and contention in a SimPy environment, also one's own | machine/platform/test_platform.py::test_a_process_of_ones_own_waits_for_tasks_and_takes_memory_of_no_device
Network links with bandwidth and latency | machine/platform/test_platform.py::test_a_transfer_takes_latency_and_bytes_and_two_share_their_link_in_one_direction
Contention of processing units | machine/platform/test_platform.py::test_tenants_together_compute_no_more_than_the_device
Contention of the memory's bandwidth | machine/platform/test_platform.py::test_memory_bandwidth_is_shared_fairly
Contention of links | machine/platform/test_fair_sharing.py::test_rates_are_max_min_fair
Level of detail for speed: layer by layer, or as a whole | machine/platform/test_platform.py::test_a_model_task_prices_each_layer_or_the_whole
Collectives (AllReduce, AllGather) are modelled accurately | machine/platform/test_platform.py::test_collectives_take_what_rings_and_trees_take
Many collectives at the high level of detail are quick | machine/platform/test_platform.py::test_concurrent_collectives_rate_each_message_once
Peak rates by precision | machine/platform/test_platform.py::test_a_task_lasts_as_the_roofline_says
Memory capacity: what does not fit is refused, or waits | machine/platform/test_platform.py::test_an_allocation_can_wait_for_its_turn
Utilization of links is tracked | machine/platform/test_platform.py::test_a_link_s_utilization_is_what_it_carried_of_what_it_could
`submit_computation_task` | machine/platform/test_platform.py::test_tasks_of_half_the_units_last_twice_as_long_side_by_side
`allocate_memory`, `free_memory` | machine/platform/test_platform.py::test_memory_is_taken_and_given_back_at_once
`submit_network_transfer_task` | machine/platform/test_platform.py::test_a_transfer_takes_latency_and_bytes_and_two_share_their_link_in_one_direction
Effective time depends on arithmetic intensity and the type of operation | machine/platform/test_platform.py::test_each_type_of_operation_has_its_efficiency
The configuration file is read | machine/platform/test_platform.py::test_a_file_of_ones_own_hardware_is_read
A JSON database of models (`configs/model_params.json`) gives FLOPs a token and memory | machine/platform/test_platform.py::test_the_shipped_database_agrees_with_the_models_that_are_known

# engine.py
`PerformanceProfile` is frozen, with these fields; `solve` has these defaults | machine/solver/test_engine.py::test_a_profile_is_a_frozen_value_and_solve_has_the_specified_defaults
`Engine.solve` maps the precision to bytes of a parameter and a peak rate | machine/solver/test_engine.py::test_every_datatype_of_a_config_is_a_precision
A precision without a rate has the general peak | machine/solver/test_engine.py::test_a_precision_without_a_rate_of_its_own_has_the_general_peak
Any other precision is taken for fp16 | | refused with the precisions that there are: a wrong word would give a wrong number
The peak rate is multiplied by the efficiency, and by the batch the FLOPs | machine/solver/test_engine.py::test_flop_of_an_inference_are_given_or_two_a_parameter_and_energy_is_power_by_latency
The bandwidth is taken as it is | machine/solver/test_engine.py::test_a_profile_s_parts_fit_together
FLOPs of an inference are given, or two a parameter | machine/solver/test_engine.py::test_flop_of_an_inference_are_given_or_two_a_parameter_and_energy_is_power_by_latency
`calc_bottleneck` gives both times and names the longer | machine/solver/test_engine.py::test_calc_bottleneck_names_the_slower_one
Latency is the longer time and the dispatch tax | machine/solver/test_engine.py::test_a_profile_s_parts_fit_together
A model is feasible where its weights fit | machine/solver/test_solving.py::test_what_would_make_a_model_fit_does_and_one_step_less_does_not
Throughput, intensity, footprint and the rates reached | machine/solver/test_engine.py::test_a_profile_s_parts_fit_together
Their units do not mix | machine/solver/test_engine.py::test_flops_bytes_and_counts_do_not_mix
Energy is power by latency | machine/solver/test_engine.py::test_flop_of_an_inference_are_given_or_two_a_parameter_and_energy_is_power_by_latency
Energy is 0 where no power is given | machine/solver/test_engine.py::test_energy_is_0_where_no_power_is_given

# Hardware simulation architecture
Performance is predicted from the program, without the device | machine/devices/test_jax_programs.py::test_simulate_takes_a_function_shapes_and_a_device
A Python API: `compile` and `simulate` | machine/devices/test_several_devices.py::test_lowered_and_compiled_programs_are_priced_by_what_xla_counts
Compiled programs are analysed | machine/devices/test_several_devices.py::test_lowered_and_compiled_programs_are_priced_by_what_xla_counts
The text of an HLO module is analysed | machine/devices/test_several_devices.py::test_hlo_text_is_priced_as_the_program_that_says_it | in part: what libraries compute (`custom-call`) is refused by name, since XLA does not count it
FLOPs are counted | machine/devices/test_jax_programs.py::test_flops_are_those_of_the_lowered_program
Memory accesses are counted | machine/devices/test_jax_programs.py::test_bytes_are_near_those_of_the_compiled_program
Models of GPUs, TPUs, CPUs and ASICs | machine/devices/test_simulator.py::test_every_shipped_device_has_a_simulator_of_its_class_that_is_slower_for_more_work
Each model has peak rate, bandwidth, caches and special features | machine/devices/test_simulator.py::test_each_field_of_a_spec_decides_something
A matrix product counts 2 m n k FLOPs, and each matrix once | machine/devices/test_jax_programs.py::test_a_matmul_is_what_it_is_by_hand
Time, utilization and bottleneck are predicted; the ridge point is rate over bandwidth | machine/devices/test_simulator.py::test_a_spec_of_ones_own_is_simulated_by_the_specified_formulas
The device's cache factor beyond L2 is 30 % for each size of it (`fidelity="seed"`) | machine/devices/test_simulator.py::test_a_spec_of_ones_own_is_simulated_by_the_specified_formulas
Simulators are subclasses of `DeviceSimulator`, such as `NvidiaA100Simulator` | machine/devices/test_simulator.py::test_simulators_are_found_by_name_spec_and_config
The roofline: the larger of compute and memory time | machine/devices/test_simulator.py::test_the_default_is_never_quicker_than_the_roofline_and_never_worse_than_its_parts
`DeviceSpec` | machine/devices/test_simulator.py::test_what_is_changed_in_a_view_reaches_the_config_and_nothing_else_does
Hooks for cache effects and occupancy multiply the time | machine/devices/test_simulator.py::test_hooks_of_a_subclass_multiply_the_time_under_every_fidelity
Occupancy by registers, shared memory and size of blocks | machine/devices/test_simulator.py::test_occupancy_is_that_of_the_calculator
Working sets beyond the cache cost traffic | machine/devices/test_simulator.py::test_all_caches_together_hold_what_is_read_again
Synthetic benchmarks are predicted and measured | machine/devices/test_validation.py::test_phases_are_synthetic_and_networks
Real models (ResNet-50, BERT-base, GPT-2 small of PyTorch) are predicted and measured | machine/devices/test_validation.py::test_torch_s_networks_are_those_of_their_papers | in part: the test counts their parameters and work; the measured times are in devices.md, of one processor
Errors below 15 % (compute-bound) and 20 % (memory-bound), and the bottleneck right in 90 % | machine/devices/test_validation.py::test_errors_are_judged_by_their_median_unless_the_machine_or_the_calibration_was_noisy | in part: on the one machine at hand, a CPU, JAX's errors lie where the criteria are, and eager torch failed for memory ([devices](devices.md#is-it-true-ask-the-machine-at-hand))
Multi-device simulation: NVLink and GPU to GPU (a future enhancement there) | machine/devices/test_several_devices.py::test_collectives_take_what_the_network_of_the_config_says
Moves over PCIe, and unlike devices together (future enhancements there) | machine/heterogeneous/test_described.py::test_a_host_s_link_is_as_fast_as_is_said
Multi-GPU scaling (a future enhancement there) | machine/devices/test_several_devices.py::test_each_device_computes_its_own_part
Cycle-accurate simulation (instructions, pipelines, branches, order), cache coherency, TLB misses, bank conflicts, prefetching (future enhancements there) | | left out

# Heterogeneous hardware
Devices are classified and found by class | machine/heterogeneous/test_taxonomy.py::test_what_a_config_states_is_a_devices_own
A registry of capabilities | machine/heterogeneous/test_taxonomy.py::test_what_is_registered_is_told_of_every_device_that_has_it
Relationships between hardware decide what moves cost | machine/heterogeneous/test_described.py::test_relationships_price_moves
Capabilities are inherited in hierarchies | machine/heterogeneous/test_taxonomy.py::test_a_chain_of_any_order_hands_on_the_product_of_its_factors
Capabilities filter devices | machine/heterogeneous/test_described.py::test_what_a_workload_requires_filters_devices
Capabilities are discovered at run time | machine/heterogeneous/test_profiler.py::test_devices_without_a_driver_are_listed_with_what_is_not_known | in part: rates and features are found of processors and NVIDIA's GPUs; others are listed as found
One interface for all kinds of hardware | machine/heterogeneous/test_abstraction_layer.py::test_backends_agree_on_every_operation
An operation runs on the preferred hardware, or on what there is | machine/heterogeneous/test_abstraction_layer.py::test_what_a_device_cannot_compute_is_done_by_the_next_that_there_is
Implementations of backends are registered, and compute | machine/heterogeneous/test_abstraction_layer.py::test_every_shipped_config_computes_on_the_host_and_costs_what_it_says
Fallbacks where hardware is not available | machine/heterogeneous/test_abstraction_layer.py::test_a_class_without_a_backend_falls_back_in_order
Fallbacks where a device fails with an error of its own | machine/heterogeneous/test_device_errors.py::test_the_layer_falls_back_and_says_what_happened
Fallbacks where a device hangs | machine/heterogeneous/test_device_errors.py::test_a_shipped_backend_that_hangs_is_left_in_time
Benchmarks of a device | machine/heterogeneous/test_profiler.py::test_the_devices_of_a_machine_are_profiled_together
Claimed capabilities are verified | machine/heterogeneous/test_profiler.py::test_a_precision_that_is_claimed_and_refused_fails_with_the_reason
Fingerprints of configurations | machine/heterogeneous/test_profiler.py::test_ten_detections_of_the_real_machine_are_equal_also_in_a_process_that_has_one_core
Use of resources is modelled | machine/heterogeneous/test_profiler.py::test_utilization_is_what_the_simulator_predicts
The memory hierarchy is modelled | machine/heterogeneous/test_profiler.py::test_the_memory_hierarchy_goes_from_the_units_outwards
Workloads are decomposed over devices | machine/heterogeneous/test_workload_manager.py::test_the_list_schedule_is_near_the_best_of_all_mappings
Workloads go to hardware that has their datatype | machine/heterogeneous/test_described.py::test_a_device_without_a_datatype_is_not_chosen
Batch sizes adapt to hardware | machine/heterogeneous/test_workload_manager.py::test_a_batch_of_the_size_that_is_chosen_is_nearly_as_good_as_any
Precision is chosen by hardware | machine/heterogeneous/test_workload_manager.py::test_the_quickest_precision_that_device_and_workload_have_is_chosen
Memory footprints are optimised | machine/heterogeneous/test_workload_manager.py::test_memory_plans_are_tried_in_order
Operations are fused for hardware, and schedules price them so | machine/heterogeneous/test_workload_manager.py::test_schedules_price_what_is_fused_as_one
Fusion rules are the user's to add | machine/heterogeneous/test_workload_manager.py::test_a_rule_of_ones_own_comes_first
The best hardware is predicted before execution (a future extension there) | machine/heterogeneous/test_workload_manager.py::test_a_decomposition_is_never_slower_than_one_device
Execution is coordinated across devices, at the same time | machine/heterogeneous/test_orchestrator.py::test_devices_compute_at_the_same_time_and_both_clocks_are_told
Data movement is minimised | machine/heterogeneous/test_orchestrator.py::test_each_array_moves_once_to_each_device_that_lacks_it_and_no_more
Devices are synchronised as dependencies ask | machine/heterogeneous/test_orchestrator.py::test_a_dependency_graph_is_honoured_by_both_clocks_and_the_plans
Failures of devices are survived | machine/heterogeneous/test_device_errors.py::test_the_orchestrator_moves_the_work_of_a_worker_that_fails
Power is managed across devices | machine/heterogeneous/test_orchestrator.py::test_a_power_budget_is_kept_and_costs_time
Thermal modelling for all hardware (whose resistance to heat the user gives) | machine/heterogeneous/test_fields.py::test_temperatures_follow_the_law_of_a_resistance_and_a_capacity_during_a_run
`EnhancedWorkloadProfile` | machine/heterogeneous/test_fields.py::test_each_field_decides_something
Workloads are decomposed into components that are given | machine/heterogeneous/test_fields.py::test_components_stay_on_one_device_and_less_is_never_quicker
`calculate_hardware_compatibility` | machine/heterogeneous/test_workloads.py::test_compatibility_ranks_devices_by_what_they_take
`EnhancedTestTask.prepare_for_hardware`, within a power budget | machine/heterogeneous/test_workloads.py::test_a_task_is_prepared_for_a_device_within_its_power_budget
A scheduler for tasks on unlike devices | machine/heterogeneous/test_workloads.py::test_tasks_go_to_the_device_that_ends_them_first
Workloads match hardware better by 30 % than a baseline | machine/heterogeneous/test_workload_manager.py::test_shares_beat_equal_ones_and_those_by_peak_on_a_mixed_cluster
At least five kinds of hardware compute together | machine/heterogeneous/test_orchestrator.py::test_five_kinds_of_device_share_a_batch_and_give_its_numbers
Underutilization falls by 25 % | machine/heterogeneous/test_workload_manager.py::test_shares_beat_equal_ones_and_those_by_peak_on_a_mixed_cluster
Efficient scaling with more kinds of hardware | machine/heterogeneous/test_workload_manager.py::test_each_kind_of_device_that_joins_adds_its_speed
Constructors and methods as they are listed | machine/heterogeneous/test_specified_surface.py::test_methods_take_what_the_specification_gives_them
Coordinators of one's own for a class of hardware | machine/heterogeneous/test_orchestrator.py::test_a_coordinator_of_ones_own_computes_for_its_class
Workloads share devices | machine/heterogeneous/test_orchestrator.py::test_workloads_share_units_and_bandwidth_of_a_device_in_equal_parts
Arrays come from where they come soonest | machine/heterogeneous/test_orchestrator.py::test_an_array_comes_from_the_device_that_sends_it_soonest
Synchronization waits for no more than it must | machine/heterogeneous/test_orchestrator.py::test_waits_are_no_more_than_another_device_makes_necessary
The data that each device holds has room there | machine/heterogeneous/test_orchestrator.py::test_a_device_holds_what_it_needs_and_no_more_than_it_has
A guide to new kinds of hardware ([there](heterogeneous.md#a-new-kind-of-hardware)) | project/test_docs.py::test_examples_of_documents_print_what_they_say
Modules named `hardware_taxonomy.py`, `unified_hardware_abstraction.py` and so on | | one module, `minitrain.heterogeneous`, has their classes
Documentation with examples that run | project/test_docs.py::test_examples_of_documents_print_what_they_say
Unavailable hardware is simulated (a future extension there) | machine/heterogeneous/test_abstraction_layer.py::test_every_shipped_config_computes_on_the_host_and_costs_what_it_says
Learning from past executions, reconfiguration during a run, cross-platform compilation (future extensions there) | | left out
`LoadBalancerResourcePoolBridge`, WebGPU and WebNN resources | | left out: there are no pools of browsers here

# lib.py
Exactly these names, parameters and defaults | project/test_lib_surface.py::test_parameters_have_the_specified_names_order_and_defaults
Types of one's own that add, or shard and combine, are reduced and gathered | engine/test_dist.py::test_reductions_combine_in_rank_order_whoever_comes_first
Tensors and events are dataclasses with these fields | project/test_lib_surface.py::test_tensors_are_dataclasses_with_the_specified_fields
Constants | project/test_lib_surface.py::test_the_constants_have_the_specified_values
Reducible and gatherable tensors combine, and only what belongs together | tensors/test_tensors.py::test_what_does_not_belong_together_does_not_combine
Shards combine to the whole | tensors/test_tensors.py::test_shards_combine_to_the_whole_in_any_order
Only a complete tensor is sharded | tensors/test_tensors.py::test_only_a_complete_tensor_can_be_sharded
Gradients accumulate over samples | tensors/test_tensors.py::test_gradients_add_to_the_samples_of_both
Gradients add where layer and shards are the same | tensors/test_tensors.py::test_gradients_of_different_layers_or_shards_do_not_add
Activations are as large as their samples | tensors/test_tensors.py::test_sizes_are_the_specified_formulas
Sizes of tensors | tensors/test_tensors.py::test_a_shard_has_its_share_of_the_size
`Barrier`: nobody passes before everybody has arrived, and it can be used again | engine/test_barrier.py::test_it_can_be_used_again_at_once_with_or_without_reset
`Barrier.reset` waits until all have passed | engine/test_barrier.py::test_reset_waits_for_the_round_in_progress
Other coroutines run while some wait | engine/test_barrier.py::test_nobody_passes_before_everybody_has_arrived
`Dist` has `barrier` and `queue` | project/test_lib_surface.py::test_dist_barrier_and_predictor_offer_the_attributes_that_a_program_may_read
`Dist` has `reduce` and `gather`, where ranks sum up | | values meet in futures, and nothing is stored; what programs can see is the same
All ranks get equal results, each its own | engine/test_dist.py::test_every_rank_gets_a_result_of_its_own
`Dist.all_reduce` sums, and ends at the latest time | engine/test_dist.py::test_all_reduce_sums_numbers_and_ends_at_the_latest_time
`reduce_scatter` sums, and gives each rank its shard | engine/test_groups.py::test_collectives_are_matched_and_sharded_per_group
`all_gather` combines the shards of all ranks | engine/test_groups.py::test_a_gather_in_a_proper_subgroup_may_be_partial
`Dist.send`, `receive`: messages come in the order of their sending | engine/test_dist.py::test_messages_come_first_in_first_out_whatever_the_buffer
`receive` waits for a message | engine/test_dist.py::test_receive_waits_for_a_message_that_comes_later
Anything can be sent | engine/test_dist.py::test_any_object_can_be_sent
A sender waits while the buffer is full | engine/test_dist.py::test_a_full_buffer_holds_the_sender_back
A model's fields and defaults, its five stores among them | project/test_lib_surface.py::test_a_model_offers_the_attributes_that_a_program_may_read
`Model.memory` is kept up by every operation, and falls where something is deleted | engine/test_stores.py::test_the_peak_sees_what_is_gone_before_the_next_event
`Model.memory` is in bytes | | the specification's own formulas count elements, and these hold; `run.peak_memory_bytes` has bytes
`Model.memory` sums what the stores hold | engine/test_stores.py::test_a_tensor_in_two_places_counts_twice_and_stays_stored_until_it_leaves_both
`Model.status` | project/test_lib_surface.py::test_status_prints_what_the_stores_hold
`Model.log_event` prices every type of event | project/test_lib_surface.py::test_log_event_prices_every_type_as_the_operation_does
Events of `load_weights`, passes, `loss`, `update` and communication | engine/test_events_exact.py::test_any_sizes_log_exactly_what_the_specification_computes
What passes, `loss`, `update` and `load_weights` return | engine/test_laws.py::test_layers_and_steps_run_as_specified
An event advances the clock by its duration | project/test_lib_surface.py::test_log_event_prices_every_type_as_the_operation_does
Final weights say whether training was complete | engine/test_random_programs.py::test_an_unchanged_program_is_accepted_and_has_trained_the_model
A training loop in the listed order trains | strategies/test_course_programs.py::test_the_basic_program_trains_on_the_default_model
Data parallelism, ZeRO and pipelines are written so | strategies/test_course_programs.py::test_distributed_programs_run_unchanged
Strategies combine them (hybrid) | strategies/test_every_strategy.py::test_three_axes_exchange_on_each_what_it_is_for
Figures are calculated from the log | strategies/test_closed_forms.py::test_useful_work_over_peak_is_the_mfu
Assertions of passes and updates are laws | engine/test_mistakes.py::test_a_mistake_ends_at_once_in_its_own_error
`receive` moves the clock to the sender's | engine/test_events_exact.py::test_late_ranks_and_every_kind_of_tensor_log_exactly_what_the_specification_computes
`RuntimePredictor` reads a config and picks the network | machine/test_predictor.py::test_the_network_is_the_smallest_tier_that_spans_the_run
Processor, memories and network are its parts | project/test_lib_surface.py::test_dist_barrier_and_predictor_offer_the_attributes_that_a_program_may_read
A pass multiplies the batch by one matrix | machine/test_predictor.py::test_a_pass_multiplies_the_batch_by_one_matrix
Compute and memory time, and the larger of both | machine/test_predictor.py::test_processing_takes_as_long_as_the_slower_of_compute_and_memory
Passes, updates and loading of weights | machine/test_predictor.py::test_update_and_load_work_on_the_shards_that_are_held
Bytes on the wire by type | machine/test_predictor.py::test_messages_have_the_specified_size
A message is priced between two ranks | machine/test_network.py::test_a_message_costs_the_same_whatever_number_of_ranks_is_given
Time of collectives and messages | machine/test_network.py::test_a_ring_moves_n_minus_1_nths_of_the_bytes
"""


@dataclass(frozen=True)
class Statement:
    """What a specification says.

    Args:
        specification: which one.
        text: what the system does.
        test: that shows it, as "file::name" below tests/; "" for none.
        why: what is not met, and why.
    """

    specification: str
    text: str
    test: str
    why: str

    @property
    def verdict(self) -> str:
        """Whether it is met."""
        return "not met" if not self.test else "in part" if self.why else "met"


def statements() -> list[Statement]:
    """Return all statements of the list."""
    found: list[Statement] = []
    heading = ""
    for line in filter(None, LIST.splitlines()):
        if line.startswith("# "):
            heading = line.removeprefix("# ")
            continue
        text, test, why, *_ = [*map(str.strip, line.split(" |")), "", ""]
        found.append(Statement(heading, text, test, why.removeprefix("in part: ")))
    return found


def page() -> str:
    """Return the page."""
    listed = statements()
    counts = {verdict: sum(each.verdict == verdict for each in listed) for verdict in ("met", "in part", "not met")}
    lines = [
        "# What the specifications say",
        "",
        "Statements of the five specifications about what the system does, linked to the test that shows it on programs, tasks or sizes that",
        f"are not the specification's own: {', '.join(f'{count} {verdict}' for verdict, count in counts.items())}. Where it does not say otherwise, a",
        "statement is met. `python docs/specifications.py` writes this page; `tests/project/test_specifications.py` fails where a test is gone.",
    ]
    for heading in dict.fromkeys(each.specification for each in listed):
        lines += ["", f"## {heading}", ""]
        for each in (each for each in listed if each.specification == heading):
            file, _, name = each.test.partition("::")
            verdict = f"*{each.verdict}*: {each.why}" if each.why else ""
            said = f"[{each.text}](../tests/{file}#{name})" if name and "](" not in each.text else each.text
            shown = f"[`{name}`](../tests/{file})" if name and said == each.text else ""
            told = "; ".join(filter(None, (shown, verdict)))
            lines.append(f"- {said}{': ' * bool(told)}{told}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
