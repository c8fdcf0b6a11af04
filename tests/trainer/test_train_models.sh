#!/bin/sh
# test_train_models.sh - the program with models of others: trained in budgets and on ranks with the same losses, written, read
# again, paused; bad models, tokens and folders are refused.  Output: TAP.
# Environment: TRAIN_GPT   the program (default build/tests/train_gpt)

. tests/support/tap.sh
. tests/trainer/train.sh

models="python3 $sources/tests/trainer/models.py"
families="llama2 llama3 qwen2 qwen3 qwen3_moe"
command -v python3 >/dev/null && $models make made || { skip "models of others" "needs python3"; tap_end; exit; }
if ! "$program" --model made/llama2 --dry-run >out 2>err; then
    grep -q 'built without cJSON' err && skip "models of others" "built without cJSON" && tap_end && exit
fi
few="--tokens made/tokens.u16 --seq 24 --batch 2 --tile 8 --steps 5 --learning-rate 0.01 --dropout 0.1"

# Every policy in a budget, and with the file of a rank's rows on the host.
budgets_change_no_bit() { # test
    for family in $families; do
        works --model made/$family $few --policy keep --loss-log $family.log
        least=$("$program" --model made/$family $few --device-memory 1KiB 2>&1 | sed -n 's/.*; try --device-memory //p')
        has_losses_of $family.log --model made/$family $few --device-memory "$least"
        expect_out "^memory "
        has_losses_of $family.log --model made/$family $few --device-memory "$least" --policy recompute
    done
    compares=0
    run --model made/qwen3 $few --steps 2 --compare 2
    expect_code 0
    expect_out 'bitwise the same'
}

# The first loss is that of one rank; later ones match up to rounding.
ranks_match_one() { # test
    for options in '--tensor 2' '--data 2 --zero 2' '--ring 2' '--tensor 2 --sub-batches 2 --type bf16'; do
        for family in qwen2 qwen3 qwen3_moe; do
            case $family$options in *moe*tensor*) continue ;; esac
            rm -f ranks.log one.log
            case $options in *bf16*) type='--type bf16' bound=0.02 ;; *) type= bound=0.0001 ;; esac
            works --model made/$family $few $type --loss-log one.log
            works --model made/$family $few $options --loss-log ranks.log --write-model ranks.$family
            paste -d ' ' one.log ranks.log | awk -v bound=$bound '{ d = $2 / $5 - 1; if (d * d > bound * bound) bad = 1 }
                END { exit bad || NR != 5 }' || fail "$family $options: other losses"
        done
    done
}

# Without a rate no bit changes, on one rank and on several.
what_is_written_is_what_was_read() { # test
    for family in $families; do
        works --model made/$family $few --learning-rate 0 --steps 1 --write-model copied/$family
        $models same made/$family copied/$family >same.txt || fail "$(cat same.txt)"
        case $family in *moe) tensor= ;; *) tensor='--tensor 2' ;; esac
        works --model made/$family $few --learning-rate 0 --steps 1 --data 2 $tensor --zero 2 --write-model split/$family
        $models same made/$family split/$family >same.txt || fail "$(cat same.txt)"
        [ "$(ls split/$family)" = "$(printf 'config.json\nmodel.safetensors')" ] || fail "$(ls split/$family)"
    done
    # What was trained, read again, goes on with the loss of the next step.
    works --model made/qwen3 --tokens made/one.u16 --seq 24 --batch 1 --tile 8 --steps 3 --write-model trained --loss-log three.log
    works --model trained --tokens made/one.u16 --seq 24 --batch 1 --tile 8 --steps 1 --learning-rate 0 --loss-log next.log
    awk 'NR == FNR { last = $2; next } { exit !($2 < last) }' three.log next.log || fail 'the loss is not lower'
    # A model of our own is one of the family llama.
    works $tiny --mlp swiglu --write-model own --loss-log own.log --dropout 0
    works --model own --random-tokens --seq 20 --batch 1 --steps 1
    fails --model own $few --steps 1 --layers 5
    expect_err '--layers 5: the model of --model has 4; without --layers it works'
}

a_pause_changes_no_bit() { # test
    for family in qwen2 qwen3 qwen3_moe; do
        works --model made/$family $few --loss-log whole.log
        works --model made/$family $few --stop 2 --save paused --loss-log paused.log
        works --model made/$family $few --resume paused --loss-log paused.log
        expect_same whole.log paused.log
        rm -f whole.log paused.log paused paused.profile
    done
    works --model made/qwen2 $few --stop 2 --save paused
    refused '--resume paused: a checkpoint of another model' --model made/qwen3 $few --resume paused
}

# A signal ends the run, which writes what it has.
an_interrupted_run_writes_the_model() { # test
    rm -f long.log
    "$program" --model made/qwen2 $few --steps 1000000 --loss-log long.log --write-model halfway >out 2>err &
    child=$!
    wait_for long.log
    ended INT
    expect_code 130
    [ "$(ls halfway)" = "$(printf 'config.json\nmodel.safetensors')" ] || fail "$(ls halfway)"
    works --model halfway $few --steps 1
}

# Adapters: in the least memory, at each moment of the update, on ranks, and after a pause.
adapters_train() { # test
    for family in qwen2 qwen3; do
        lora="--model made/$family $few --lora 4"
        rm -f lora.log
        works $lora --loss-log lora.log --write-model new.$family
        expect_out '^adapters  rank 4, alpha 8, of q, k, v, o, gate, up, down: .* million parameters train$' '^frozen '
        least=$("$program" $lora --device-memory 1KiB 2>&1 | sed -n 's/.*; try --device-memory //p')
        has_losses_of lora.log $lora --device-memory "$least"
        expect_out '^update    on the host'
        prints ' 0 races' $lora --device-memory "$least" --link-bandwidth 1MB --update host --steps 3 --output hosted.$family
        has_losses_of lora.log $lora --device-memory "$least" --policy recompute
        least=$("$program" $lora --device-memory 1KiB --update device 2>&1 | sed -n 's/.*; try --device-memory //p')
        for moment in pass deferred; do has_losses_of lora.log $lora --device-memory "$least" --update $moment; done

        for options in '--tensor 2' '--data 2 --zero 2' '--ring 2' '--tensor 2 --sub-batches 2'; do
            rm -f ranks.log
            works $lora $options --loss-log ranks.log
            paste -d ' ' lora.log ranks.log | awk '{ d = $2 / $5 - 1; if (d * d > 1e-12) bad = 1 } END { exit bad || NR != 5 }' ||
                fail "$family $options: other losses"
        done

        rm -f paused.log
        works $lora --stop 2 --save paused --loss-log paused.log
        works $lora --resume paused --loss-log paused.log --write-model resumed.$family
        expect_same lora.log paused.log
        $models same new.$family resumed.$family >same.txt || fail "$(cat same.txt)"
        refused '--resume paused: a checkpoint of another model: its --model' $lora --lora-alpha 3 --resume paused
    done
}

# Experts: adapters beside attention; what does not work with them is named.
experts_train() { # test
    moe="--model made/qwen3_moe $few"
    works $moe --lora 4 --lora-targets q,k,v,o --loss-log lora.log --write-model attention
    expect_out 'of which a token has .* million: 2 of 6 experts'
    least=$("$program" $moe --lora 4 --lora-targets q,k,v,o --device-memory 1KiB 2>&1 | sed -n 's/.*; try --device-memory //p')
    has_losses_of lora.log $moe --lora 4 --lora-targets q,k,v,o --device-memory "$least"
    for options in '--slice-rows 16' '--mlp-rows 8' '--states 8bit --type bf16' '--window 7 --accumulate 2'; do
        rm -f part.log
        works $moe $options --policy keep --loss-log part.log
        least=$("$program" $moe $options --device-memory 1KiB 2>&1 | sed -n 's/.*; try --device-memory //p')
        has_losses_of part.log $moe $options --device-memory "$least"
    done
    refused '--lora-targets: experts have no adapters; --lora-targets q,k,v,o would work' $moe --lora 4
    refused '--tensor 2, --sub-batches 1: do not work with experts' $moe --tensor 2
    refused '--tensor 1, --sub-batches 2: do not work with experts' $moe --sub-batches 2
    works $moe --stop 2 --save paused
    refused '--resume paused: a checkpoint of another model' --model made/qwen3 $few --resume paused
    rm -f paused paused.profile
}

# What is written is read again; without a rate no bit changes; the files of the model are never written.
adapters_are_files() { # test
    cksum made/qwen3/* >before.txt
    works --model made/qwen3 $few --adapter made/qwen3.adapter --learning-rate 0 --steps 1 --write-model copied.adapter
    $models same made/qwen3.adapter copied.adapter >same.txt || fail "$(cat same.txt)"
    works --model made/qwen3 $few --adapter made/qwen3.adapter --learning-rate 0 --steps 1 --data 2 --tensor 2 --zero 2 --type bf16 \
        --write-model split.adapter
    $models same made/qwen3.adapter split.adapter >same.txt || fail "$(cat same.txt)"
    one='--tokens made/one.u16 --seq 24 --batch 1 --tile 8'
    works --model made/qwen3 $one --lora 8 --lora-alpha 4 --lora-targets q,v --steps 3 --write-model qv --loss-log three.log
    [ "$(ls qv)" = "$(printf 'adapter_config.json\nadapter_model.safetensors')" ] || fail "$(ls qv)"
    works --model made/qwen3 $one --adapter qv --steps 1 --learning-rate 0 --loss-log next.log
    expect_out '^adapters  rank 8, alpha 4, of q, v: '
    awk 'NR == FNR { last = $2; next } { exit !($2 < last) }' three.log next.log || fail 'the loss is not lower'
    works --model made/qwen3 $one --adapter qv --steps 1 --write-model qv
    cksum made/qwen3/* | cmp - before.txt || fail 'the model is another'
}

# A dry run needs no weights, and the host has none of those that are frozen.
adapters_are_planned() { # test
    works --dry-run --model llama3-8b --lora 16 --cluster rtx5080 --seq 4096 --batch 1
    expect_out '^adapters  rank 16, alpha 32, .*: 41.94 million parameters train$' '^frozen    15.0 GiB of weights stay in their files'
    awk '/^  host / && $3 == "GiB" && $2 > 2.5 { exit 1 }' out || fail 'frozen weights are on the host'
    works --dry-run --model made/qwen3 --adapter made/qwen3.adapter --seq 24 --batch 2
    expect_out '^adapters  rank 4, alpha 8, '
}

bad_adapters_are_refused() { # test
    qwen="--model made/qwen3 $few"
    refused '--lora has no effect without --model DIR' --random-tokens --lora 4
    refused '--lora-alpha has no effect without --lora RANK' $qwen --lora-alpha 4
    refused '--lora 33: a rank from 1 to 32, the width of a token' $qwen --lora 33
    refused '--lora-targets q,x: names of q, k, v, o, gate, up and down' $qwen --lora 4 --lora-targets q,x
    refused '--lora 8: the adapters of --adapter have rank 4' $qwen --lora 8 --adapter made/qwen3.adapter
    refused '--lora-targets q: the adapters of --adapter have others' $qwen --lora-targets q --adapter made/qwen3.adapter
    refused '--adapter nowhere/adapter_config.json: cannot be read: No such file' $qwen --adapter nowhere
    cp -r made/qwen3.adapter cut
    head -c 5000 made/qwen3.adapter/adapter_model.safetensors >cut/adapter_model.safetensors
    refused '--adapter cut/adapter_model.safetensors: tensor .*: data_offsets: outside of the file' $qwen --adapter cut
    sed 's/"lora_dropout": 0.0/"lora_dropout": 0.1/' made/qwen3.adapter/adapter_config.json >cut/adapter_config.json
    refused '--adapter cut/adapter_config.json: lora_dropout: 0.1 is not supported' $qwen --adapter cut
    refused '--adapter made/llama2.adapter/adapter_model.safetensors: tensor .*: shape .*; adapter_config.json says' $qwen \
        --adapter made/llama2.adapter
    cp -r made/qwen3.adapter kept.adapter
    refused '--write-model kept.adapter: has adapters already; --adapter kept.adapter would' $qwen --lora 4 --write-model kept.adapter
    diff -r kept.adapter made/qwen3.adapter >/dev/null || fail 'adapters are written over'
    refused '--sample has no effect with --tokens' $qwen --lora 4 --sample 5
}

# Documents end at eos_token_id, which config.json has.
documents_end_at_the_token_of_the_model() { # test
    works --model made/llama3 $few --documents 24 --loss-log documents.log
    works --model made/llama3 $few --documents 24 --separator 2 --loss-log two.log
    expect_same documents.log two.log
}

# A dry run reads config.json alone.
a_dry_run_needs_no_weights() { # test
    mkdir -p bare
    cp made/qwen3/config.json bare
    works --model bare --dry-run --seq 24 --batch 2
    mv out bare.out
    works --model made/qwen3 --dry-run --seq 24 --batch 2
    sed '/^weights /d' bare.out >bare.lines
    sed '/^weights /d' out | cmp - bare.lines || fail 'other plans'
    refused '--model bare.*safetensors.*: cannot be ' --model bare $few
}

# The script of the table, with a program in place of the trainer: a disk where RAM lacks, the faster of two plans.
the_table_is_made() { # test
    cat >planner <<'END'
#!/bin/sh
echo "$*" >>plans
case "$*" in
*b200*) echo 'frozen    54.3 GiB of weights' ;;
*gigantic*|*rtx5080*56GiB|*rtx5080*56GiB\ --mlp-rows\ 4096) echo 'cannot hold this run' >&2; exit 2 ;;
*--spill*) echo 'rate      99.7 tokens/s, 1' ;;
*--mlp-rows*) echo 'rate      1234.4 tokens/s, 1' ;;
*) echo 'rate      1034.4 tokens/s, 1' ;;
esac
END
    chmod +x planner
    TRAIN_GPT=./planner sh "$sources/bench/models.sh" some gigantic >out 2>err || fail "$(cat err)"
    expect_out '^| some | whole | 32,768 | 100 d | 1,234 | 1,234 | 1,234 | 1,234 |$' '^| gigantic | LoRA | 131,072 | no | no | no | no | no |$'
    # RAM has the files of frozen weights, too: 55 GiB of 56.
    expect_out '^| some | LoRA | 32,768 | 1,234 | 1,234 | 1,234 | 1,234 | 1,234 |$'
    grep -q -- '--lora 16.* --host-memory 57GiB' plans || fail "$(cat plans)"
    grep -q -- '--lora 16.* --host-memory 1GiB' plans || fail "$(cat plans)"
    printf '#!/bin/sh\necho failed >&2; exit 1\n' >planner
    ! TRAIN_GPT=./planner sh "$sources/bench/models.sh" some >out 2>err || fail 'an error is no cell'
}

bad_models_are_refused() { # test
    refused '--model nowhere/config.json: cannot be read' --model nowhere $few || :
    refused '--model nowhere/config.json: cannot be read: No such file' --model nowhere $few
    mkdir -p bad
    cp made/qwen3/* bad
    sed 's/"silu"/"gelu"/' made/qwen3/config.json >bad/config.json
    refused '--model bad/config.json: hidden_act: "gelu" is not supported; "silu" would work' --model bad $few
    sed 's/"intermediate_size": 48/"intermediate_size": 40/' made/qwen3/config.json >bad/config.json
    refused '--model bad/model.safetensors: tensor .*mlp.*: shape 48 x 32; config.json says 40 x 32' --model bad $few
    cp made/qwen3/config.json bad
    head -c 5000 made/qwen3/model.safetensors >bad/model.safetensors
    refused '--model bad/model.safetensors: tensor .*: data_offsets: outside of the file' --model bad $few
    { head -c 60000 made/qwen3/model.safetensors; printf '\000\000\300\177'; tail -c +60005 made/qwen3/model.safetensors; } >bad/model.safetensors
    refused '--model bad/model.safetensors: tensor .*: element .* is not finite' --model bad $few
    refused '--model has no effect on a text' --model made/qwen3 --text text
    refused '--hidden 64: the model of --model has 32' --model made/qwen3 $few --hidden 64
    refused '--states 8bit does not work with adapters, .*; --states bf16 would work' --model made/qwen3 --lora 2 $few --states 8bit
    refused '--update host does not work with --model with tied tables' --model made/qwen2 $few --update host
    works --model made/qwen3 $few --hidden 32 --kv-heads 2
}

bad_tokens_are_refused() { # test
    printf '1' >odd.u16 && : >none.u32 && printf 'ab' >two.u16 && cp made/tokens.u16 tokens.bin
    refused '--tokens odd.u16: 1 bytes are no whole tokens of 2 bytes' --model made/qwen3 $few --tokens odd.u16
    refused '--tokens none.u32: cannot be read: the file is empty' --model made/qwen3 $few --tokens none.u32
    refused '--tokens two.u16: 1 tokens, and a sequence of --seq 24 needs' --model made/qwen3 $few --tokens two.u16
    refused '--tokens tokens.bin: a name that ends in .u16 or .u32' --model made/qwen3 $few --tokens tokens.bin
    cp made/tokens.u16 wide.u32
    refused '--tokens wide.u32: token 0 is .*, not below the vocabulary of 67' --model made/qwen3 $few --tokens wide.u32
    refused '--text has no effect with --tokens' $few --text text --vocabulary 67
    refused '--sample has no effect with --tokens' --model made/qwen3 $few --sample 5
    works $few --vocabulary 67 --layers 2 --hidden 16 --heads 2 # a new model
}

bad_folders_are_refused() { # test
    refused '--write-model made/qwen3/config.json: is also the file of --model' --model made/qwen3 $few --write-model made/qwen3
    refused '--write-model text: cannot be ' --model made/qwen3 $few --write-model text
    refused '--write-model has no effect with --mlp gelu' $tiny --write-model gelu
    refused '--write-model has no effect with --window' --model made/qwen3 $few --window 5 --write-model windowed
    fails --model made/qwen3 $few --dry-run --write-model dry
    expect_err '--write-model has no effect with --dry-run'
    mkdir -p indexed && : >indexed/model.safetensors.index.json
    refused '--write-model indexed: has a model.safetensors.index.json' --model made/qwen3 $few --write-model indexed
    refused 'try --device-memory' --model made/qwen3 $few --device-memory 1KiB --write-model refused
    for name in gelu windowed dry refused; do [ ! -e $name ] || fail "$name is left behind"; done
    # A run that cannot write keeps what was there.
    works --model made/qwen3 $few --steps 1 --write-model kept
    cp -r kept kept.before
    (ulimit -f 20 && exec "$program" --model made/qwen3 $few --write-model kept >out 2>err)
    code=$?
    expect_code 1
    expect_err '--write-model kept/model.safetensors: cannot be written: File too large'
    diff -r kept kept.before >/dev/null || fail "$(ls kept)"
}

tests_of "$sources/tests/trainer/test_train_models.sh" judged
tap_end
