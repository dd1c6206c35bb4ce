"""Chat templates that write images as those of the families do."""

GEMMA3 = (
    "{{ '<|bos|>' }}{%- for message in messages -%}<|user|>{{ message['role'] }}\n"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}"
    "{%- else -%}{%- for item in message['content'] -%}{%- if item['type'] == 'image' -%}<start_of_image>"
    "{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}{%- endif -%}"
    "<|end|>\n{%- endfor -%}{%- if add_generation_prompt -%}<|assistant|>model\n{%- endif -%}"
)

SMOLVLM = (
    "<|bos|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)

QWEN = (
    "{% for message in messages %}<|user|>{{ message['role'] }}\n{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

PIXTRAL = (
    "<|bos|>{% for message in messages %}{% if message['role'] == 'user' %}[INST]"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for block in message['content'] %}"
    "{% if block['type'] == 'text' %}{{ block['text'] }}{% elif block['type'] in ['image', 'image_url'] %}[IMG]"
    "{% endif %}{% endfor %}{% endif %}[/INST]{% else %}{{ message['content'] }}<|eos|>{% endif %}{% endfor %}"
)

GEMMA4 = (
    "{{ '<|bos|>' }}{%- for message in messages -%}<|user|>{{ message['role'] }}\n"
    "{%- if message['content'] is string -%}{{ message['content'] | trim }}"
    "{%- else -%}{%- for item in message['content'] -%}{%- if item['type'] == 'image' -%}<|image|>"
    "{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}{%- endfor -%}{%- endif -%}"
    "<|end|>\n{%- endfor -%}{%- if add_generation_prompt -%}<|assistant|>model\n{%- endif -%}"
)
