"""Templates like those of the known formats that write something else: variants of published ones."""

from tests.chat.published_chats import OTHERS, PUBLISHED, QWEN3, QWEN25

_CHATML_TURN = "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
_CHATML_PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
_CHATML = "{% for message in messages %}" + _CHATML_TURN + "{% endfor %}" + _CHATML_PROMPT
INTERNLM2 = "{{ bos_token }}" + _CHATML
YI = (
    "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% endif %}"
    "{% if system_message is defined %}{{ '<|im_start|>system\n' + system_message + '<|im_end|>\n' }}"
    "{% endif %}{% for message in messages %}{% set content = message['content'] %}"
    "{% if message['role'] == 'user' %}{{ '<|im_start|>user\n' + content + '<|im_end|>\n' }}"
    "{{ '<|im_start|>assistant\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ content + '<|im_end|>' + '\n' }}{% endif %}{% endfor %}"
)
CHATML_TRIMMED = _CHATML.replace("message['content']", "message['content'] | trim")
CHATML_EOS = _CHATML.replace("'<|im_end|>'", "'<|im_end|>' + eos_token")
CHATML_GENERATION = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}"
    "{{ message.content + '<|im_end|>' }}{% endgeneration %}{% else %}"
    "{{ message.content + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}" + _CHATML_PROMPT
)
HERMES = r"""{{- bos_token -}}
{%- if tools -%}
{{- "<|im_start|>system\nYou are a function calling AI model. You are provided with function signatures within <tools></tools> XML tags. Here are the available tools: <tools> " -}}
{%- for tool in tools -%}
{{- (tool | tojson) -}}
{%- if not loop.last -%}{{- "\n" -}}{%- endif -%}
{%- endfor -%}
{{- " </tools>For each function call return a json object within <tool_call></tool_call> XML tags.<|im_end|>\n" -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == "user" or message.role == "system" or (message.role == "assistant" and message.tool_calls is not defined) -%}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' -}}
    {%- elif message.role == "assistant" -%}
        {{- '<|im_start|>' + message.role -}}
        {%- for tool_call in message.tool_calls -%}
            {{- '\n<tool_call>\n' -}}
            {%- if tool_call.function is defined -%}{%- set tool_call = tool_call.function -%}{%- endif -%}
            {{- '{"name": "' -}}{{- tool_call.name -}}{{- '", "arguments": ' -}}
            {{- tool_call.arguments | tojson -}}{{- '}' -}}
            {{- '\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\n' -}}
    {%- elif message.role == "tool" -%}
        {%- if loop.previtem and loop.previtem.role != "tool" -%}{{- '<|im_start|>tool\n' -}}{%- endif -%}
        {{- '<tool_response>\n' -}}{{- message.content -}}
        {%- if not loop.last -%}{{- '\n</tool_response>\n' -}}{%- else -%}{{- '\n</tool_response>' -}}{%- endif -%}
        {%- if not loop.last and loop.nextitem.role != "tool" -%}{{- '<|im_end|>' -}}
        {%- elif loop.last -%}{{- '<|im_end|>' -}}{%- endif -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""  # noqa: E501
QWQ = QWEN25.replace(
    "'<|im_start|>assistant\\n' }}\n{%- endif %}", "'<|im_start|>assistant\\n<think>\\n' }}\n{%- endif %}"
)
QWEN3_2507 = QWEN3.replace(
    "'\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + ", "'\\n' + "
)
QWEN3_CODER = r"""{%- for message in messages %}{%- if message.role == 'system' %}{{- '<|im_start|>system\n' + message.content }}
{%- endif %}{%- endfor %}
{%- if tools %}{{- "\n\n# Tools\n\n<tools>" }}
{%- for tool in tools %}{%- set tool = tool.function if tool.function is defined else tool %}
{{- "\n<function>\n<name>" ~ tool.name ~ "</name>" }}
{%- if tool.parameters is mapping and tool.parameters.properties is mapping %}
{%- for name, fields in tool.parameters.properties | items %}{{- '\n<parameter>' ~ name ~ ': ' ~ fields.type | string ~ '</parameter>' }}{%- endfor %}
{%- endif %}{{- '\n</function>' }}{%- endfor %}{{- "\n</tools>" }}{%- endif %}
{%- if messages[0].role == 'system' or tools %}{{- '<|im_end|>\n' }}{%- endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content is defined and message.content is string and message.content | trim | length > 0 %}{{- '\n' + message.content | trim + '\n' }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- set tool_call = tool_call.function %}
            {{- '\n<tool_call>\n<function=' + tool_call.name + '>\n' }}
            {%- for name, value in tool_call.arguments | items %}
                {{- '<parameter=' + name + '>\n' }}
                {{- value | tojson if value is mapping or (value is sequence and value is not string) else value | string }}
                {{- '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "user" or message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<|im_start|>user\n' }}{%- endif %}
        {{- '<tool_response>\n' + message.content + '\n</tool_response>\n' }}
        {%- if loop.last or loop.nextitem.role != "tool" %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""  # noqa: E501
LLAMA32 = PUBLISHED["llama3.1"].replace(
    '{%- set date_string = "26 Jul 2024" %}',
    '{%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}'
    '{%- set date_string = "26 Jul 2024" %}{%- endif %}',
)
DEEPSEEK_V2 = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + "
    "message['content'] + '\n\n' }}{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + "
    "message['content'] + eos_token }}{% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
DEEPSEEK_R1 = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') %}"
    "{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = "
    "message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}{%- for message in "
    "messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + "
    "message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is none "
    "%}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls']%}{%- if not ns.is_first %}"
    "{{'<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + "
    "tool['function']['name'] + '\n' + '```json' + '\n' + tool['function']['arguments'] + '\n' + '```' + "
    "'<｜tool▁call▁end｜>'}}{%- set ns.is_first = true -%}{%- else %}{{'\n' + '<｜tool▁call▁begin｜>' + "
    "tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\n' + '```json' + '\n' + "
    "tool['function']['arguments'] + '\n' + '```' + '<｜tool▁call▁end｜>'}}{{'<｜tool▁calls▁end｜>"
    "<｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor %}{%- endif %}{%- if message['role'] == 'assistant' and "
    "message['content'] is not none %}{%- if ns.is_tool %}{{'<｜tool▁outputs▁end｜>' + message['content'] + "
    "'<｜end▁of▁sentence｜>'}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endif %}{%- if message['role'] "
    "== 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}{{'<｜tool▁outputs▁begin｜>"
    "<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}{%- set ns.is_output_first = "
    "false %}{%- else %}{{'\n<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}"
    "{%- endif %}{%- endif %}{%- endfor -%}{% if ns.is_tool %}{{'<｜tool▁outputs▁end｜>'}}{% endif %}"
    "{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\n'}}{% endif %}"
)
COMMAND_R = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set "
    "system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set "
    "system_message = false %}{% endif %}{% if system_message != false %}{{ "
    "'<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}{% endif %}"
    "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
    "raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% set content = message['content'] %}{% if message['role'] == 'user' %}{{ "
    "'<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% elif "
    "message['role'] == 'assistant' %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'  + content.strip() + "
    "'<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"
)
VICUNA = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
    "messages[0]['content'] | trim + ' ' %}{% else %}{% set loop_messages = messages %}{% set "
    "system_message = 'A chat between a curious user and an artificial intelligence assistant. ' %}"
    "{% endif %}{{ bos_token + system_message }}{% for message in loop_messages %}{% if message['role'] == "
    "'user' %}{{ 'USER: ' + message['content'] | trim + ' ' }}{% else %}{{ 'ASSISTANT: ' + "
    "message['content'] | trim + eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}"
    "{{ 'ASSISTANT:' }}{% endif %}"
)
OPENCHAT = (
    "{{ bos_token }}{% for message in messages %}{{ 'GPT4 Correct ' + message['role'].title() + ': ' + "
    "message['content'] + '<|end_of_turn|>' }}{% endfor %}{% if add_generation_prompt %}{{ 'GPT4 Correct "
    "Assistant:' }}{% endif %}"
)
SOLAR = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{% if message['content'] %}{{ '### "
    "System:\n' + message['content'] + '\n\n' }}{% endif %}{% elif message['role'] == 'user' %}{{ '### "
    "User:\n' + message['content'] + '\n\n' }}{% elif message['role'] == 'assistant' %}{{ '### "
    "Assistant:\n' + message['content'] }}{% if not loop.last %}{{ '\n\n' }}{% endif %}{% endif %}"
    "{% if loop.last and add_generation_prompt %}{{ '### Assistant:\n' }}{% endif %}{% endfor %}"
)
FALCON3 = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] "
    "+ '\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '\n' }}{% elif "
    "message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\n' + message['content'] + "
    "eos_token + '\n' }}{% else %}{{ '<|assistant|>\n' + message['content'] + eos_token }}{% endif %}"
    "{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"
)
OLMO1 = (
    "{{ eos_token }}{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + "
    "message['content'] }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n' + "
    "message['content'] + eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n"
    "{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
STABLELM_ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] "
    "+ eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + "
    "eos_token }}\n{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + "
    "eos_token }}\n{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>\n' }}\n"
    "{% endif %}\n{% endfor %}"
)
GLM4 = (
    "[gMASK]<sop>{% for item in messages %}{% if item['tools'] is defined and item['tools'] and "
    "item['role'] == 'system' %}{{ '<|system|>\ntools' }}{% endif %}{% if item['content'] %}<|"
    "{{ item['role'] }}|>{{ item['metadata'] }}\n{{ item['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GRANITE3 = (
    "{%- if tools %}{{- '<|start_of_role|>available_tools<|end_of_role|>\n' }}{%- for tool in tools %}"
    "{{- tool | tojson(indent=4) }}{%- if not loop.last %}{{- '\n\n' }}{%- endif %}{%- endfor %}"
    "{{- '<|end_of_text|>\n' }}{%- endif %}{%- for message in messages %}{%- if message['role'] == "
    "'assistant_tool_call' or message.tool_calls %}{{- '<|start_of_role|>assistant<|end_of_role|>"
    "<|tool_call|>[' }}{%- for call in message.tool_calls %}{{- call.function | tojson }}{%- if not "
    "loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}{{- ']<|end_of_text|>\n' }}{%- elif message['role'] == "
    "'tool' %}{{- '<|start_of_role|>tool_response<|end_of_role|>' + message['content'] + "
    "'<|end_of_text|>\n' }}{%- else %}{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + "
    "message['content'] + '<|end_of_text|>\n' }}{%- endif %}{%- if loop.last and add_generation_prompt %}"
    "{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}{%- endfor %}"
)
PHI4_MINI_TOOLS = (
    "{% for message in messages %}{% if message['role'] == 'system' and tools %}{{ '<|' + message['role'] + "
    "'|>' + message['content'] + '<|tool|>' + (tools | tojson) + '<|/tool|>' + '<|end|>' }}{% else %}{{ "
    "'<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"
)
LFM2 = r"""{{- bos_token -}}
{%- set keep_past_thinking = keep_past_thinking | default(false) -%}
{%- set ns = namespace(system_prompt="", last=-1) -%}
{%- if messages[0]["role"] == "system" -%}
    {%- set ns.system_prompt = messages[0]["content"] -%}{%- set messages = messages[1:] -%}
{%- endif -%}
{%- if tools -%}
    {%- set ns.system_prompt = ns.system_prompt + ("\n" if ns.system_prompt else "") + "List of tools: <|tool_list_start|>[" -%}
    {%- for tool in tools -%}
        {%- if tool is not string -%}{%- set tool = tool | tojson -%}{%- endif -%}
        {%- set ns.system_prompt = ns.system_prompt + tool -%}
        {%- if not loop.last -%}{%- set ns.system_prompt = ns.system_prompt + ", " -%}{%- endif -%}
    {%- endfor -%}
    {%- set ns.system_prompt = ns.system_prompt + "]<|tool_list_end|>" -%}
{%- endif -%}
{%- if ns.system_prompt -%}{{- "<|im_start|>system\n" + ns.system_prompt + "<|im_end|>\n" -}}{%- endif -%}
{%- for message in messages -%}{%- if message["role"] == "assistant" -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- set mark = "</think>" -%}
{%- for message in messages -%}
    {{- "<|im_start|>" + message["role"] + "\n" -}}
    {%- set content = message["content"] -%}
    {%- if content is not string -%}{%- set content = content | tojson -%}{%- endif -%}
    {%- if message["role"] == "assistant" and not keep_past_thinking and loop.index0 != ns.last -%}
        {%- if mark in content -%}{%- set content = content.split(mark)[-1] | trim -%}{%- endif -%}
    {%- elif message["role"] == "tool" -%}
        {%- set content = "<|tool_response_start|>" + content + "<|tool_response_end|>" -%}
    {%- endif -%}
    {{- content + "<|im_end|>\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\n" -}}{%- endif -%}
"""  # noqa: E501
NEMOTRON = (
    "{{ '<extra_id_0>System' }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '\n' + "
    "message['content'].strip() }}{% endif %}{% endfor %}{{ '\n\n' }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ '<extra_id_1>User\n' + message['content'].strip() + '\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ '<extra_id_1>Assistant\n' + message['content'].strip() + "
    "'\n' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<extra_id_1>Assistant\n' }}{% endif %}"
)
EXAONE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}{{ '[|system|]"
    "[|endofturn|]\n' }}{% endif %}{{ '[|' + message['role'] + '|]' + message['content'] }}"
    "{% if message['role'] == 'user' %}{{ '\n' }}{% else %}{{ '[|endofturn|]\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[|assistant|]' }}{% endif %}"
)
LOOKALIKES = {
    "internlm2": INTERNLM2, "yi": YI, "chatml-trimmed": CHATML_TRIMMED, "chatml-eos": CHATML_EOS,
    "chatml-generation": CHATML_GENERATION, "hermes": HERMES, "qwq": QWQ, "qwen3-2507": QWEN3_2507,
    "qwen3-coder": QWEN3_CODER, "llama3.2": LLAMA32, "deepseek-v2": DEEPSEEK_V2, "deepseek-r1": DEEPSEEK_R1,
    "command-r": COMMAND_R, "vicuna": VICUNA, "openchat": OPENCHAT, "solar": SOLAR, "falcon3": FALCON3,
    "olmo1": OLMO1, "stablelm-zephyr": STABLELM_ZEPHYR, "glm4": GLM4, "granite3": GRANITE3,
    "phi-4-mini-tools": PHI4_MINI_TOOLS, "lfm2": LFM2, "nemotron": NEMOTRON, "exaone": EXAONE,
    **{name: OTHERS[name] for name in ("mistral-v7", "smollm3", "granite", "phi-4-mini", "phi-4")},
}  # fmt: skip
